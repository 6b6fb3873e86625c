"""A user's own model: its files in a repository of ours, and its configuration as Triton completes it."""

import os
from pathlib import Path

import pytest
from own_repositories import BACKENDS, PYTHON, fingerprint, may_not_write, python_model

from model_repo.errors import RepositoryWriteFailed
from model_repo.repository.config_pbtxt import parse_config_pbtxt, render_config_pbtxt
from model_repo.repository.own_config import shared_out, with_parameter, with_value
from model_repo.repository.own_model import completed, own_engine, own_files, parse_own, unread_engine
from model_repo.repository.write import LINKED_BYTES, keep_own, write_final_repository, write_repository
from model_repo.spec import ServingConfig

LOADED = {
    "name": "scorer",
    "platform": "",
    "backend": "python",
    "max_batch_size": 8,
    "input": [{"name": "x", "data_type": "TYPE_FP32", "format": "FORMAT_NONE", "dims": [4], "unheard_of": 1}],
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [4]}],
    "instance_group": [{"name": "scorer_0", "kind": "KIND_GPU", "count": 1, "gpus": [0]}],
    "dynamic_batching": {"preferred_batch_size": [8], "max_queue_delay_microseconds": 0},
    "version_policy": {"latest": {"num_versions": 1}},
}
"""What a server says of a model without a configuration."""


def config_of(folder: Path, text: str, **changes: object) -> ServingConfig:
    given = {"max_batch_size": 4, "dynamic_batching": True, "instance_count": 2, **changes}
    return ServingConfig(engine=own_engine(folder, text, on_gpu=False), **given)  # type: ignore[arg-type]


def test_files_are_ours_and_the_users_stay(tmp_path: Path) -> None:
    folder = python_model(tmp_path / "users")
    with (folder / "1" / "large.bin").open("wb") as large:
        large.truncate(LINKED_BYTES + 1)
    (folder / "shared").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "tokens.txt").write_text("a b")
    (tmp_path / "elsewhere" / "again").symlink_to(tmp_path / "elsewhere")
    (folder / "1" / "gone").symlink_to(tmp_path / "nowhere")
    os.mkfifo(folder / "1" / "pipe")
    before = fingerprint(tmp_path / "users")
    served = write_repository(tmp_path / "ours", config_of(folder, PYTHON))
    names = {path.relative_to(served).as_posix() for path in served.rglob("*") if path.is_file()}
    compiled = {name for name in names if name.endswith(".pyc")}
    mine = {"config.pbtxt", "1/model.py", "1/weights.json", "1/large.bin", "notes.txt", "shared/tokens.txt"}
    assert names - compiled == mine
    assert "1/__pycache__/x.pyc" not in compiled
    assert not any(path.is_symlink() for path in served.rglob("*"))
    assert (served / "1" / "large.bin").samefile(folder / "1" / "large.bin")
    with (served / "notes.txt").open("a") as notes:
        notes.write("written by the model")
    assert fingerprint(tmp_path / "users") == before


def test_the_copy_of_a_run_shares_no_file_with_the_users(tmp_path: Path) -> None:
    folder = python_model(tmp_path / "users")
    with (folder / "1" / "large.bin").open("wb") as large:
        large.truncate(LINKED_BYTES + 1)
    keep_own(folder, tmp_path / "run" / "model" / "scorer", folder / "config.pbtxt")
    kept = tmp_path / "run" / "model" / "scorer"
    assert {path for path in kept.iterdir() if path.name.startswith(".")} == set()
    for name, path in own_files(folder):
        assert not (kept / name).samefile(path)
    assert (kept / "config.pbtxt").read_text() == PYTHON
    before = fingerprint(kept)
    with pytest.raises(RepositoryWriteFailed):
        keep_own(folder, kept, folder / "config.pbtxt")
    assert fingerprint(kept) == before


def test_a_read_only_model_can_be_replaced_and_removed(tmp_path: Path) -> None:
    folder = python_model(tmp_path / "users")
    may_not_write(folder)
    for _ in range(2):
        served = write_repository(tmp_path / "ours", config_of(folder, PYTHON))
    final = write_final_repository(tmp_path / "final", config_of(folder, PYTHON))
    assert (final / "config.pbtxt").read_text() == (served / "config.pbtxt").read_text()
    assert not list(final.rglob("*.pyc"))
    assert os.access(served / "1" / "model.py", os.W_OK)


def test_a_program_stays_one_and_a_key_private(tmp_path: Path) -> None:
    folder = python_model(tmp_path / "users")
    (folder / "1" / "tool").write_text("#!/bin/sh\n")
    (folder / "1" / "tool").chmod(0o750)
    private = ("1/weights.json", "config.pbtxt")
    for name in private:
        (folder / name).chmod(0o600)
    keep_own(folder, tmp_path / "kept", folder / "config.pbtxt")
    for copy in (tmp_path / "kept", write_repository(tmp_path / "ours", config_of(folder, PYTHON))):
        assert (copy / "1" / "tool").stat().st_mode & 0o777 == 0o750
        assert {(copy / name).stat().st_mode & 0o777 for name in private} == {0o600}


def test_code_that_does_not_compile_is_left_to_triton(tmp_path: Path) -> None:
    folder = python_model(tmp_path / "users")
    (folder / "1" / "model.py").write_text("this is not Python")
    served = write_repository(tmp_path / "ours", config_of(folder, PYTHON))
    assert (served / "1" / "model.py").read_text() == "this is not Python"


def test_what_triton_completes_is_added_and_nothing_else(tmp_path: Path) -> None:
    text = completed("", LOADED)
    message = parse_config_pbtxt(text)
    assert (message.backend, message.max_batch_size, message.input[0].name) == ("python", 8, "x")
    assert [(group.count, group.name, list(group.gpus)) for group in message.instance_group] == [(1, "", [])]
    assert not message.HasField("version_policy")
    assert completed(text, LOADED) == text
    assert completed(PYTHON, LOADED | {"dynamic_batching": {}}).startswith(PYTHON)
    assert own_engine(tmp_path, text, on_gpu=True).device == "gpu"
    assert own_engine(tmp_path, text, on_gpu=False).device == "cpu"


def test_a_field_that_triton_corrects_is_replaced() -> None:
    text = '# mine\nmax_batch_size: 0\ninput { name: "x" }\nbackend: "python"  # ours\n'
    changed = completed(text, LOADED)
    assert changed.startswith('# mine\nbackend: "python"  # ours\n')
    message = parse_own(changed)
    assert message.max_batch_size == 8
    assert list(message.input[0].dims) == [4]


def test_a_complete_text_stays_as_it_is() -> None:
    loaded = {**LOADED, "instance_group": [{"name": "fast", "kind": "KIND_CPU", "count": 1}]}
    del loaded["dynamic_batching"]
    assert completed(PYTHON, loaded) == PYTHON


@pytest.mark.parametrize("more", ["", "dynamic_batching { }\n", "dynamic_batching { preserve_ordering: true }\n"])
def test_an_engine_to_be_asked_for_is_rendered_as_it_is(tmp_path: Path, more: str) -> None:
    folder = python_model(tmp_path)
    config = ServingConfig(engine=unread_engine(folder, PYTHON + more), max_batch_size=0, dynamic_batching=False)
    assert (write_repository(tmp_path / "ours", config) / "config.pbtxt").read_text() == PYTHON + more


def test_an_incomplete_text_is_no_engine(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no input and no output"):
        own_engine(tmp_path, 'backend: "python"', on_gpu=False)


@pytest.mark.parametrize(
    ("total", "given", "counts"),
    [(3, (1, 2), (1, 2)), (6, (1, 2), (2, 4)), (2, (1, 2), (1, 1)), (4, (1, 1), (2, 2)), (8, (3, 1), (6, 2))],
)
def test_instances_are_shared_out_in_the_configured_ratio(
    total: int, given: tuple[int, ...], counts: tuple[int, ...]
) -> None:
    assert shared_out(total, given) == counts
    with pytest.raises(ValueError, match="fewer"):
        shared_out(len(given) - 1, given)


@pytest.mark.parametrize("more", ["", "preserve_ordering: true", "priority_levels: 2 default_priority_level: 1"])
def test_a_batcher_with_other_duties_stays_without_batching(tmp_path: Path, more: str) -> None:
    text = f"{PYTHON}dynamic_batching {{ preferred_batch_size: [ 8 ] {more} }}\n"
    off = config_of(python_model(tmp_path), text, max_batch_size=1, dynamic_batching=False)
    message = parse_own(render_config_pbtxt(off))
    assert message.HasField("dynamic_batching") == bool(more)
    assert message.max_batch_size == (1 if more else 8)
    assert not message.dynamic_batching.preferred_batch_size


ACCELERATOR = "optimization.execution_accelerators.gpu_execution_accelerator"


@pytest.mark.parametrize(
    ("text", "path", "value", "expected"),
    [
        ("# x\n", "optimization.graph.level", "1", "# x\noptimization: { graph: { level: 1 } }\n"),
        (
            "optimization { cuda { graphs: true } # x\n}\n",
            "optimization.cuda.graphs",
            "false",
            "optimization { cuda { graphs: false } # x\n}\n",
        ),
        (
            "optimization {\n  cuda { graphs: true }\n}\n",
            "optimization.cuda.busy_wait_events",
            "true",
            "optimization {\n  cuda { busy_wait_events: true graphs: true }\n}\n",
        ),
        (
            'optimization { execution_accelerators { gpu_execution_accelerator [ { name: "old" } ] } }',
            ACCELERATOR,
            "tensorrt",
            'optimization { execution_accelerators { gpu_execution_accelerator: [ { name: "tensorrt" } ] } }',
        ),
        (
            "dynamic_batching { preferred_batch_size: [ 4, 8 ] }\n",
            "dynamic_batching.preferred_batch_size",
            "4",
            "dynamic_batching { preferred_batch_size: 4 }\n",
        ),
        (
            "instance_group [ { count: 2 }, { kind: KIND_CPU } ]\n",
            "instance_group.1.count",
            "3",
            "instance_group [ { count: 2 }, { count: 3 kind: KIND_CPU } ]\n",
        ),
        (
            "instance_group [ { kind: KIND_GPU, gpus: [ 0, 1 ], count: 2 }, { gpus: 1 } ]\n",
            "instance_group.0.kind",
            "KIND_CPU",
            "instance_group [ { kind: KIND_CPU,  count: 2 }, { gpus: 1 } ]\n",
        ),
        (
            "instance_group [ { kind: KIND_CPU }, { gpus: 1 } ]\n",
            "instance_group.1.kind",
            "KIND_GPU",
            "instance_group [ { kind: KIND_CPU }, { kind: KIND_GPU gpus: 1 } ]\n",
        ),
    ],
)
def test_a_value_is_set_at_its_path(text: str, path: str, value: str, expected: str) -> None:
    changed = with_value(text, path, value)
    assert changed == expected
    parse_config_pbtxt(changed)


def test_a_parameter_is_replaced_or_added() -> None:
    changed = with_parameter(with_parameter(PYTHON, "factor", "7"), "new", "x")
    values = {key: value.string_value for key, value in parse_config_pbtxt(changed).parameters.items()}
    assert values == {"factor": "7", "new": "x"}
    assert changed.replace('{ string_value: "7" }', '{ string_value: "2" }', 1) != PYTHON  # it has a colon now
    text = BACKENDS["fil"][1]
    assert with_parameter(text, "storage_type", "DENSE").count("\n") == text.count("\n")


def test_files_come_in_order_and_without_the_configuration(tmp_path: Path) -> None:
    names = [name for name, _ in own_files(python_model(tmp_path))]
    assert names == ["notes.txt", "1/model.py", "1/weights.json"]


def test_groups_without_a_count_get_the_servers() -> None:
    text = 'backend: "onnxruntime"\ninstance_group [ { kind: KIND_CPU }, { count: 3 kind: KIND_CPU } ]\n'
    groups = [{"name": "a", "kind": "KIND_CPU", "count": 2}, {"name": "b", "kind": "KIND_CPU", "count": 3}]
    changed = completed(text, {"instance_group": groups})
    assert changed == text.replace("{ kind", "{ count: 2 kind", 1)
    assert completed(changed, {"instance_group": groups}) == changed


def test_sizes_over_a_smaller_maximum_go(tmp_path: Path) -> None:
    batcher = "dynamic_batching { preferred_batch_size: [ 4, 200 ] preserve_ordering: true }\n"
    warm_ups = "model_warmup [ { batch_size: 010 }, { batch_size: 0x10 } ]\n"
    text = PYTHON.replace("max_batch_size: 8 ", "max_batch_size: 256 ") + batcher + warm_ups
    folder = python_model(tmp_path)
    given = {"instance_count": 2, "preferred_batch_sizes": (4,)}
    message = parse_own(render_config_pbtxt(config_of(folder, text, max_batch_size=8, **given)))
    assert message.max_batch_size == 8
    assert list(message.dynamic_batching.preferred_batch_size) == [4]
    assert [warm_up.batch_size for warm_up in message.model_warmup] == [8]
    assert render_config_pbtxt(config_of(folder, text, max_batch_size=128, **given)) == text


def test_an_empty_version_is_kept(tmp_path: Path) -> None:
    folder = python_model(tmp_path / "users")
    (folder / "2").mkdir()
    keep_own(folder, tmp_path / "run" / "scorer", folder / "config.pbtxt")
    served = write_repository(tmp_path / "ours", config_of(tmp_path / "run" / "scorer", PYTHON))
    assert (served / "2").is_dir()
