"""What is refused of a user's own repository, in two lines, and noted."""

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from own_repositories import (
    BACKENDS,
    PYTHON,
    engines_of,
    loaded,
    may_not_write,
    own_config,
    python_model,
    refused,
    written,
)

from loadgen.errors import BadInput
from loadgen.options.sources import Origin
from model_repo.errors import ModelLoadFailed
from model_repo.repository.own_model import MAX_FILES, own_engine
from optimizer.command.arguments import config_from_options
from optimizer.config import OptimizeConfig
from optimizer.run.own_copies import check_copy
from optimizer.space_options import with_models_from_texts
from search.space import MachineLimits, default_config, knobs_of, search_space


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ("sequence_batching { }", "sequence"),
        ("model_transaction_policy { decoupled: true }", "decoupled"),
        ("ensemble_scheduling { step [ ] }", "ensemble"),
        ('platform: "ensemble"', "ensemble"),
        ("\ninput {\n", f"line {PYTHON.count(chr(10)) + 2}"),
        ("# gr\xfc\xdfe", "UTF-8"),
        ("input { name: 'z' data_type: 999 dims: 1 }", "999"),
        ("instance_group { kind: 999 count: 1 }", "999"),
        ("input " + "{ a " * 20_000 + "}" * 20_000, "nested"),
        ("input { name: 'z' data_type: TYPE_FP32 dims: 1 }\n" * 50_000, "bytes"),
    ],
    ids=lambda text: text[:30],
)
@pytest.mark.parametrize("ask", [None, loaded])
def test_a_configuration_that_cannot_be_served_or_measured_is_refused(
    tmp_path: Path, more: str, word: str, ask: Any
) -> None:
    folder = python_model(tmp_path / "repository")
    (folder / "config.pbtxt").write_bytes(f"{PYTHON}{more}\n".encode("latin-1"))
    assert word in refused(own_config(tmp_path), ask).what


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
@pytest.mark.parametrize("ask", [None, loaded])
def test_a_configuration_that_is_no_regular_file_is_refused(tmp_path: Path, make: Any, ask: Any) -> None:
    make(python_model(tmp_path / "repository", config=None) / "config.pbtxt")
    with pytest.raises(BadInput, match="no regular file"):
        engines_of(own_config(tmp_path), ask)


SPEC = "optimization.cuda.graph_spec.batch_size"


@pytest.mark.parametrize(
    ("config", "changes", "word"),
    [
        (PYTHON, {"client_batch": 9}, "--client-batch 9"),
        (PYTHON, {"client_batch": 3, "max_batch_sizes": (2,)}, "--max-batch-size 2"),
        (PYTHON.replace("size: 8 ", "size: 0 "), {"max_batch_sizes": (4,)}, "--max-batch-size"),
        (PYTHON, {"vary": [(f"parameters.{name}", ("1", "2", "3", "4")) for name in "ab"]}, "--vary"),
        (
            f"{PYTHON}optimization {{ cuda {{ graph_spec {{ batch_size: 1 }} graph_spec {{ batch_size: 2 }} }} }}",
            {"vary": [(SPEC, ("4",))]},
            SPEC,
        ),
    ],
)
def test_what_the_model_or_the_search_does_not_take_is_refused(
    tmp_path: Path, config: str, changes: dict[str, Any], word: str
) -> None:
    python_model(tmp_path / "repository", config=config)
    assert word in refused(own_config(tmp_path, **changes)).what


def test_the_count_of_the_only_group_is_searched_and_not_varied(tmp_path: Path) -> None:
    second, path = '{ name: "batch" count: 1 kind: KIND_CPU }', "instance_group.0.count"
    python_model(tmp_path / "repository", config=PYTHON.replace("KIND_CPU },", "KIND_CPU }").replace(second, ""))
    assert "--instances" in refused(own_config(tmp_path, vary=((path, ("2",)),))).fix


def test_a_kind_that_only_triton_completes_is_refused_as_well(tmp_path: Path) -> None:
    python_model(tmp_path / "repository")

    def decoupled(engine: Any) -> Any:
        return {"scorer": {**loaded(engine)["scorer"], "model_transaction_policy": {"decoupled": True}}}

    assert "decoupled" in refused(own_config(tmp_path), decoupled).what


@pytest.mark.parametrize("written_as", ["fp32", "TYPE_fp32", "FLOAT"])
@pytest.mark.parametrize("ask", [None, loaded])
def test_a_value_that_triton_writes_in_another_way_is_answered_with_its_spelling(
    tmp_path: Path, written_as: str, ask: Any
) -> None:
    python_model(tmp_path / "repository", config=PYTHON.replace("TYPE_FP32", written_as))
    error = refused(own_config(tmp_path), ask)
    assert "TYPE_FP32" in error.what
    assert written_as in error.what
    assert ("TYPE_INT64" in error.what) == (written_as == "FLOAT")


@pytest.mark.parametrize(
    ("reason", "named"),
    [
        ("FileNotFoundError: No such file or directory: '/run/repository/labels.txt'", ["labels.txt"]),
        ("ModuleNotFoundError: No module named 'common'", ["common"]),
        ("no license for scorer", []),
    ],
)
def test_a_model_that_does_not_load_is_quoted_and_what_its_copy_lacks_is_named(
    tmp_path: Path, reason: str, named: list[str]
) -> None:
    python_model(tmp_path / "repository")
    (tmp_path / "repository" / "labels.txt").touch()
    (tmp_path / "repository" / "common").mkdir()

    def fails(engine: Any) -> Any:
        raise ModelLoadFailed(engine.model_name, reason)

    error = refused(own_config(tmp_path), fails)
    assert reason in error.what
    assert [name for name in ("labels.txt", "common", "scorer") if name in error.fix.partition(" /")[0]] == named
    assert "server.log" in error.fix


def test_an_incomplete_configuration_needs_a_server(tmp_path: Path) -> None:
    python_model(tmp_path / "repository", config=None)
    assert "--dry-run" in refused(own_config(tmp_path), None).fix
    (tmp_path / "repository" / "scorer" / "config.pbtxt").write_text("input {\n")
    assert "--dry-run" not in refused(own_config(tmp_path), None).fix


def test_sizes_that_vary_are_asked_for(tmp_path: Path) -> None:
    written(tmp_path / "repository", "ranker", BACKENDS["onnxruntime_onnx"][1], {"1/model.onnx": ""})
    config = own_config(tmp_path, "ranker")
    assert "--shape ids:N" in refused(config).fix
    assert "mask" in refused(replace(config, shapes={"ids": (4,), "mask": (4,)})).what  # it is optional
    assert "ids" in refused(replace(config, shapes={"ids": (4, 4)})).what
    (engine,) = engines_of(replace(config, shapes={"ids": (9,)}))
    assert [(spec.name, spec.concrete_shape) for spec in engine.inputs] == [("ids", (9,))]


ON_GPU = PYTHON.replace("KIND_CPU }", "KIND_GPU gpus: 0 }", 1)


@pytest.mark.parametrize("ask", [None, loaded])
def test_a_model_for_a_gpu_is_refused_without_one_unless_vary_has_another_kind(tmp_path: Path, ask: Any) -> None:
    python_model(tmp_path / "repository", config=ON_GPU)
    config, path = own_config(tmp_path), "instance_group.0.kind"
    flag = f"--vary {path}=KIND_CPU"
    assert flag in refused(config, ask).fix
    assert flag in refused(replace(config, vary=(("instance_group.1.kind", ("KIND_CPU",)),)), ask).fix
    for values, count in ((("KIND_CPU",), 1), (("KIND_GPU", "KIND_CPU"), 2)):
        seen: list[Any] = []
        engines = engines_of(replace(config, vary=((path, values),)), ask, seen.append)
        assert [engine.own.text for engine in engines[:1] if engine.own] == [
            PYTHON.replace("KIND_CPU }", "KIND_CPU  }", 1)
        ]
        assert (len(engines), [note.warning for note in seen]) == (count, [True])
    assert len(engines_of(config, ask, on_gpu=True)) == 1
    for server in ("embedded", "docker"):
        python_model(tmp_path / "repository", "other")
        member = own_config(tmp_path, "other", calls=("scorer",), server=server)
        assert "--vary" not in refused(member, ask).fix
    engines_of(own_config(tmp_path, server="remote"), ask)  # which may have one


@pytest.mark.parametrize(
    "field", ["default_queue_policy { max_queue_size: 9 }", "priority_levels: 2 default_priority_level: 1"]
)
def test_a_field_that_makes_triton_wait_is_noted(tmp_path: Path, field: str) -> None:
    python_model(tmp_path / "repository", config=f"{PYTHON}dynamic_batching {{ {field} }}\n")
    seen: list[Any] = []
    engines_of(own_config(tmp_path), on_event=seen.append)
    assert [note.warning for note in seen] == [True]


@pytest.mark.parametrize(
    ("text", "vary", "notes"),
    [
        (PYTHON + "response_cache { enable: true }\n", (), ["--cache-config"]),
        (PYTHON + "response_cache { enable: false }\n", (), []),
        (PYTHON, (("response_cache.enable", ("false", "true")),), ["--cache-config"]),
        (PYTHON.replace('"batch"', '"batch" rate_limiter { priority: 2 }'), (), ["--rate-limit"]),
    ],
)
def test_a_field_that_does_nothing_without_an_option_of_the_server_is_noted_once(
    tmp_path: Path, text: str, vary: Any, notes: list[str]
) -> None:
    python_model(tmp_path / "repository", config=text)
    seen: list[Any] = []
    engines_of(own_config(tmp_path, vary=vary), on_event=seen.append)
    assert len(seen) == len(notes)
    assert all(option in note.text for option, note in zip(notes, seen, strict=True))


def test_a_read_only_repository_is_read(tmp_path: Path) -> None:
    python_model(tmp_path / "repository")
    may_not_write(tmp_path / "repository")
    assert len(engines_of(own_config(tmp_path))) == 1


def test_the_space_holds_the_users_own_point_and_larger_batches_only_if_asked(tmp_path: Path) -> None:
    text = PYTHON.replace("max_batch_size: 8 ", "max_batch_size: 6 ") + "dynamic_batching { }\n"
    folder = python_model(tmp_path / "repository", config=text)
    engine = own_engine(folder, text, on_gpu=False)
    machine = MachineLimits(cores=2, memory_bytes=2**33)
    space = search_space((engine,), machine, limit_ms=50.0, largest_batch=6)
    assert space.values["max_batch_size"] == (1, 2, 4, 6)
    assert space.values["instance_count"] == (2, 4, 8)
    assert space.values["intra_op_threads"] == (0,)
    assert space.baseline() == default_config(engine)
    larger = search_space((engine,), machine, limit_ms=50.0, largest_batch=16)
    assert larger.values["max_batch_size"] == (1, 2, 4, 6, 8, 16)
    smaller = search_space((engine,), machine, limit_ms=50.0, largest_batch=3)
    assert smaller.values["max_batch_size"] == (1, 2, 3)
    assert smaller.baseline() == default_config(engine) == smaller.config(knobs_of(smaller.baseline()))


def from_options(root: Path, **given: str | tuple[str, ...] | Path | int) -> OptimizeConfig:
    values = {"model": "scorer", "output": root / "run", "repository": root / "repository", "p99": "50ms", **given}
    return config_from_options(values, by_flags(*given))[0]


def by_flags(*names: str) -> dict[str, Origin]:
    return {name: Origin(kind="flag", place=f"--{name}") for name in names}


def test_options_of_other_models_are_refused_at_once(tmp_path: Path) -> None:
    python_model(tmp_path / "repository")
    with pytest.raises(BadInput) as raised:
        from_options(tmp_path, precisions="fp16", accuracy="off", workers="auto", threads="2")
    assert {"--precisions,", "--accuracy,", "--threads,", "--workers:"} <= set(raised.value.what.split())


def test_options_of_a_repository_need_one(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"--vary, --tune"):
        config_from_options(
            {
                "model": "m.onnx",
                "p99": "9ms",
                "output": tmp_path,
                "tune": "a",
                "vary": ("parameters.a=1",),
            },
            by_flags("tune", "vary"),
        )


REMOTE = {"server": "remote", "server_url": "http://x:8000"}
NO_VARY = """
threads=1 parameters.=1 parameters.a= parameters.a=1," parameters.a
optimization=1 optimization.graph=1 optimization.nope=1 optimization.graph.level=0,x optimization.cuda.graph_spec=1
instance_group.count=2 instance_group.0.count=x instance_group.0.count=1,0 instance_group.0.count=-1
instance_group.00.count=2 dynamic_batching.priority_levels=2
optimization.execution_accelerators.gpu_execution_accelerator.parameters.precision_mode=FP16
"""


@pytest.mark.parametrize(
    ("given", "word"),
    [
        *(({"vary": (text,)}, "--vary") for text in NO_VARY.split()),
        *(({"model": name}, "--model") for name in ("", "..", ".", "a/scorer", "/scorer")),
        ({"model": "empty"}, "no version"),
        ({"repository": Path("nowhere")}, "cannot be read"),
        ({**REMOTE, "server_repository": Path("repository")}, "--server-repository"),
        ({**REMOTE, "server_repository": Path("repository/trials")}, "--server-repository"),
        (REMOTE, "full load"),
        *(
            ({"output": Path(inside), "model": "linked"}, "--output")
            for inside in ("repository/runs/a", "repository/linked/runs/a", "elsewhere/scorer/runs/a")
        ),
    ],
    ids=str,
)
def test_options_that_do_not_fit_the_repository_are_refused(
    tmp_path: Path, given: dict[str, Any], word: str
) -> None:
    python_model(tmp_path / "repository")
    (tmp_path / "repository" / "empty").mkdir()
    python_model(tmp_path / "elsewhere")
    (tmp_path / "repository" / "linked").symlink_to(tmp_path / "elsewhere" / "scorer")
    with pytest.raises(BadInput) as raised:
        from_options(tmp_path, **{k: tmp_path / one if isinstance(one, Path) else one for k, one in given.items()})
    assert word in str(raised.value)


def test_a_model_that_is_not_there_is_answered_with_those_that_are(tmp_path: Path) -> None:
    python_model(tmp_path / "repository", "other")
    with pytest.raises(BadInput) as raised:
        from_options(tmp_path)
    assert "other" in raised.value.fix


@pytest.mark.parametrize(
    "given",
    [{**REMOTE, "yes": True}, {**REMOTE, "dry_run": True}, {"model": "scorer/"}, {"output": "elsewhere/runs"}],
    ids=str,
)
def test_options_that_fit_it_are_taken(tmp_path: Path, given: dict[str, Any]) -> None:
    """A plan changes nothing and needs no --yes; shells complete a model's name with a slash."""
    python_model(tmp_path / "elsewhere")
    (tmp_path / "repository").mkdir()
    (tmp_path / "repository" / "scorer").symlink_to(tmp_path / "elsewhere" / "scorer")
    if "output" in given:
        given = {"output": tmp_path / given["output"]}
    assert from_options(tmp_path, **given).model == "scorer"


def test_links_that_lead_too_far_are_refused(tmp_path: Path) -> None:
    link = python_model(tmp_path / "repository") / "1" / "link"
    (tmp_path / "many").mkdir()
    for number in range(MAX_FILES + 1):
        (tmp_path / "many" / str(number)).touch()
    for target in (tmp_path, Path("/dev/null"), tmp_path / "many"):
        link.symlink_to(target)
        with pytest.raises(BadInput, match="cannot be read"):
            engines_of(own_config(tmp_path))
        link.unlink()


SHELLED = "a$(touch${IFS}PWN)b"


@pytest.mark.parametrize("name", [SHELLED, "a b", "a;b", "m\u00f6del"])
def test_a_name_that_a_shell_would_read_is_refused_of_models_in_python(tmp_path: Path, name: str) -> None:
    python_model(tmp_path / "repository")
    python_model(tmp_path / "repository", name)
    (other,) = with_models_from_texts([f"{name}:p99=20ms,rate=9"])
    step = (
        f'step {{ model_name: "{name}" input_map {{ key: "x" value: "x" }} output_map {{ key: "y" value: "y" }} }}'
    )
    pair = PYTHON.replace('backend: "python"', f"ensemble_scheduling {{ {step} }}")
    written(tmp_path / "repository", "pair", pair, {"1/.keep": ""})
    for ask in (None, not_asked):
        for config in (
            own_config(tmp_path, name),
            own_config(tmp_path, calls=(name,)),
            own_config(tmp_path, with_models=(other,)),
            own_config(tmp_path, "pair"),
        ):
            assert repr(name) in refused(config, ask).what
    written(tmp_path / "repository", name, BACKENDS["fil"][1], {"1/model.json": "{}"})
    engines_of(own_config(tmp_path, name))  # no shell sees it


@pytest.mark.parametrize("ask", [None, loaded])
def test_a_configuration_in_the_folder_configs_is_taken_by_its_name(tmp_path: Path, ask: Any) -> None:
    """As Triton takes it with its option of this name: a model without one of it keeps its config.pbtxt."""
    for name in ("scorer", "words"):
        python_model(tmp_path / "repository", name)
    for name in ("a100", "h100"):
        named = {f"configs/{name}.pbtxt": f"# {name}\n{PYTHON}"}
        folder = written(tmp_path / "repository", "scorer", None, named)
    config, seen = own_config(tmp_path, calls=("words",)), []
    for name in ("a100", "h100", None):
        (engine,) = engines_of(replace(config, model_config_name=name), ask)
        seen += [one.own.text for one in (engine, *engine.members) if one.own]
    assert seen == [f"# a100\n{PYTHON}", PYTHON, f"# h100\n{PYTHON}", PYTHON, PYTHON, PYTHON]
    (folder / "config.pbtxt").unlink()
    for name in (None, "t4", "../configs/a100"):
        error = refused(replace(config, model_config_name=name), ask)
        assert "a100, h100" in error.what
        assert "--model-config-name a100" in error.fix
    (folder / "configs" / "h100.pbtxt").write_text("backend: 1.5\n")
    assert "configs/h100.pbtxt" in refused(replace(config, model_config_name="h100"), ask).what
    (folder / "configs" / "h100.pbtxt").unlink()
    (folder / "configs" / "h100.pbtxt").symlink_to(Path(__file__))
    assert "--follow-links" in refused(replace(config, model_config_name="h100"), ask).fix


def test_a_name_that_no_configuration_has_is_refused_at_once(tmp_path: Path) -> None:
    folder = python_model(tmp_path / "repository")
    written(tmp_path / "repository", "scorer", None, {"configs/h100.pbtxt": PYTHON})
    with pytest.raises(BadInput, match="h100"):
        from_options(tmp_path, model_config_name="h200")
    assert from_options(tmp_path, model_config_name="h100").model_config_name == "h100"
    (folder / "configs" / "h100.pbtxt").rename(folder / "config.pbtxt")
    with pytest.raises(BadInput, match="h100"):
        from_options(tmp_path, model_config_name="h100")


def not_asked(engine: Any) -> Any:
    raise AssertionError(f"a server was asked for {engine.model_name}")


@pytest.mark.parametrize(
    ("server", "text"),
    [
        ("docker", f'{PYTHON}default_model_filename: "{SHELLED}"\n'),
        ("docker", PYTHON.replace('"fast"', f'"{SHELLED}"')),
        ("docker", f'default_model_filename: "{SHELLED}"\n'),
        ("embedded", f'backend: "onnxruntime" default_model_filename: "{SHELLED}"\n'),
    ],
)
def test_words_of_a_configuration_that_a_shell_would_read_are_refused(
    tmp_path: Path, server: str, text: str
) -> None:
    written(tmp_path / "repository", "scorer", text, {"1/weights": ""})
    assert repr(SHELLED) in refused(own_config(tmp_path, server=server), not_asked).what


@pytest.mark.parametrize("link", ["1/key", "1/folder", "config.pbtxt", "2", "", "1/inside/key"])
@pytest.mark.parametrize("ask", [None, loaded])
def test_a_link_out_of_the_repository_is_named_and_followed_only_if_asked(
    tmp_path: Path, link: str, ask: Any
) -> None:
    """Also one that a link within the repository leads to."""
    folder = python_model(tmp_path / "repository")
    (folder / "1" / "inside").symlink_to(tmp_path / "repository" / "shared")
    (tmp_path / "repository" / "shared").mkdir()
    (tmp_path / "repository" / "shared" / "tokens.txt").touch()
    config = own_config(tmp_path)
    engines_of(config, ask)
    outside = folder.rename(tmp_path / "scorer") if not link else tmp_path / "outside"
    if link:
        (outside.write_text(PYTHON) if link in ("1/key", "1/inside/key", "config.pbtxt") else outside.mkdir())
    (folder / link).unlink(missing_ok=True)
    (folder / link).symlink_to(outside)
    error = refused(config, ask)
    assert str(folder / link) in error.what
    assert str(outside) in error.what
    assert "--follow-links" in error.fix
    engines_of(replace(config, follow_links=True), ask)


def test_a_repository_may_be_a_link(tmp_path: Path) -> None:
    python_model(tmp_path / "elsewhere")
    (tmp_path / "repository").symlink_to(tmp_path / "elsewhere")
    engines_of(own_config(tmp_path))


def test_a_copy_has_to_fit(tmp_path: Path) -> None:
    folder = python_model(tmp_path / "repository")
    check_copy(folder, tmp_path / "run" / "scorer", folder / "config.pbtxt")
    with (folder / "1" / "large.bin").open("wb") as large:  # it takes no space itself
        large.truncate(shutil.disk_usage(tmp_path).free + 2**35)
    with pytest.raises(BadInput, match="GiB"):
        check_copy(folder, tmp_path / "run" / "scorer", folder / "config.pbtxt")
    for ask in (loaded, None):  # a plan reads no terabytes of nothing
        with pytest.raises(BadInput, match="GiB"):
            engines_of(own_config(tmp_path), ask)


def test_another_models_folder_need_not_be_readable(tmp_path: Path) -> None:
    python_model(tmp_path / "repository")
    python_model(tmp_path / "repository", "secret").chmod(0)
    from_options(tmp_path)
    if os.geteuid():
        with pytest.raises(BadInput, match="no model other"):
            from_options(tmp_path, model="other")
    (tmp_path / "repository" / "secret").chmod(0o755)


def test_no_folder_is_not_the_current_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python_model(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match="--repository"):
        from_options(tmp_path, repository="")
    assert from_options(tmp_path, repository=".", output=Path("/elsewhere")).repository == tmp_path


def test_a_plan_does_not_guess_how_many_instances_a_server_makes(tmp_path: Path) -> None:
    text = PYTHON.replace('{ name: "batch" count: 1 kind', '{ name: "batch" kind')
    python_model(tmp_path / "repository", config=text)
    assert "--dry-run" in refused(own_config(tmp_path), ask=None).fix
    engines_of(own_config(tmp_path))  # a server completes it


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    folder = python_model(tmp_path / "repository")
    (folder / "1" / "weights.json").unlink()
    (folder / "1" / "weights.json").symlink_to("/proc/self/mem/x")
    engines_of(own_config(tmp_path))  # a link to nothing is left out
    if os.geteuid():
        (folder / "1" / "model.py").chmod(0)
        assert "model.py cannot be read" in refused(own_config(tmp_path)).what
