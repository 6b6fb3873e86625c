"""A model of a user's own repository through the whole flow in virtual time, and what is refused."""

import os
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from own_repositories import BACKENDS, MODEL, PYTHON, fingerprint, loaded, may_not_write, python_model, written
from simulated_bench import SimulatedBench

from loadgen.errors import BadInput
from loadgen.options.sources import Origin
from loadgen.spec.limits import LatencyLimit
from model_repo.errors import ModelLoadFailed
from model_repo.repository.own_model import own_engine
from model_repo.spec import Engine, ServingConfig
from optimizer.command.arguments import config_from_options
from optimizer.config import OptimizeConfig
from optimizer.machine.stalls import SchedulingStalls
from optimizer.run.bundle import bundle_run, winner_of
from optimizer.run.own_model import own_engines
from optimizer.run.pipeline import optimize
from optimizer.run_file import save_config, saved_config
from search.records.recommendation import RecommendationRecord
from search.records.run_files import read_recommendation
from search.space import MachineLimits, default_config, search_space
from search.trials import events


def own_config(root: Path, name: str = "scorer", **changes: Any) -> OptimizeConfig:
    given: dict[str, Any] = {
        "limits": (LatencyLimit(limit_ms=50.0),),
        "repository": root / "repository",
        "model": name,
        "output": root / "run",
        "server": "docker",
        "price_per_hour_usd": 2.0,
        "time_budget_s": 150.0,
        "seed": 3,
    }
    return OptimizeConfig(**{**given, **changes})


def factor(config: ServingConfig) -> float:
    """A model whose speed depends on its parameter `factor`: 3 is the fastest."""
    assert config.engine.own is not None
    return 0.5 if 'string_value: "3"' in config.engine.own.text else 1.0


def service_s(config: ServingConfig, batch_size: int) -> float:
    crowding = max(1.0, config.instance_count / 4)
    return (0.006 + 0.0005 * batch_size) * crowding * factor(config)


def found_in(config: OptimizeConfig, on_event: Callable[[Any], None] = events.ignore) -> RecommendationRecord:
    config.output.mkdir(exist_ok=True)
    bench = SimulatedBench(service_s=service_s)

    def bench_for(config: Any, prepared: Any, workload: Any) -> nullcontext[Any]:
        return nullcontext(replace(bench, workload=workload, spent=bench.spent))

    return optimize(
        config,
        on_event=on_event,
        bench_for=bench_for,
        clock=lambda: bench.spent.load_s + bench.spent.loading_s,
        measure_machine=lambda seconds: SchedulingStalls(seconds=seconds, delays_ms=((0.1,),)),
        ask_server=loaded,
    )


@pytest.mark.slow
def test_the_answer_is_the_users_own_text_with_a_few_fields_changed(tmp_path: Path) -> None:
    folder = python_model(tmp_path / "repository")
    config = own_config(tmp_path, vary=(("factor", ("2", "3")),))
    before = fingerprint(tmp_path / "repository")
    found = found_in(config)
    assert fingerprint(tmp_path / "repository") == before
    assert found.model.file == "repository/scorer"
    assert found.model.opset is None
    assert found.baseline is not None
    assert (found.baseline.config.instance_count, found.baseline.config.dynamic_batching) == (2, False)
    assert found.gain is not None
    assert found.gain > 2
    assert found.winner.config.engine == "repository-python factor=3"
    served = tmp_path / "run" / "model_repository" / "scorer"
    text = (served / "config.pbtxt").read_text()
    assert text.startswith("# Ask the ranking team before you change it.\n")
    assert "# for the jobs at night" in text
    assert 'value: { string_value: "3" }' in text
    assert "dynamic_batching {" in text
    assert found.config_diff is not None
    patched = tmp_path / "patched"
    subprocess.run(["cp", "-r", tmp_path / "repository", patched], check=True)
    diff = tmp_path / "run" / "config.pbtxt.diff"
    subprocess.run(["patch", "-p1", "-s", "-i", diff], cwd=patched, check=True)
    assert (patched / "scorer" / "config.pbtxt").read_text() == text
    assert not list((tmp_path / "run").rglob("*.pyc"))
    assert (served / "1" / "model.py").read_text() == (folder / "1" / "model.py").read_text()
    bundled = tmp_path / "run" / "bundle" / "model_repository" / "scorer"
    assert (bundled / "config.pbtxt").read_text() == text
    assert (bundled / "1" / "weights.json").exists()
    assert not (tmp_path / "run" / "bundle" / "kubernetes" / "search").exists()


def test_what_changes_in_mid_run_changes_no_trial(tmp_path: Path) -> None:
    folder = python_model(tmp_path / "repository")
    config, kept = own_config(tmp_path), tmp_path / "kept"
    record, (engine,) = own_engines(config, kept, on_gpu=False, ask=loaded, on_event=print)
    (folder / "1" / "model.py").write_text("another version")
    (folder / "config.pbtxt").write_text("another: 1")
    again, (same,) = own_engines(config, kept, on_gpu=False, ask=loaded, on_event=print)
    assert (record, engine) == (again, same)
    assert engine.own is not None
    assert (engine.own.folder / "1" / "model.py").read_text() == MODEL


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    folder = python_model(tmp_path / "repository")
    (folder / "1" / "weights.json").unlink()
    (folder / "1" / "weights.json").symlink_to("/proc/self/mem/x")
    engines_of(own_config(tmp_path))  # a link to nothing is left out
    if os.geteuid():
        (folder / "1" / "model.py").chmod(0)
        assert "model.py cannot be read" in refused(own_config(tmp_path)).what


@pytest.mark.slow
def test_a_run_is_resumed_and_its_bundle_is_rendered_again(tmp_path: Path) -> None:
    python_model(
        tmp_path / "repository", config=PYTHON + "dynamic_batching { max_queue_delay_microseconds: 700 }\n"
    )
    config = own_config(tmp_path, client_batch=2)
    config.output.mkdir()
    save_config(config, config.output)
    first = found_in(config)
    assert first.baseline is not None
    assert (first.baseline.config.max_batch_size, first.baseline.config.max_queue_delay_us) == (8, 700)
    again = saved_config(config.output)
    assert (again.model, again.repository) == ("scorer", tmp_path / "repository")
    found = found_in(replace(again, time_budget_s=300.0))
    assert found.winner.certificate is not None
    winner = winner_of(config.output, read_recommendation(config.output))
    assert winner.instance_count == found.winner.config.instance_count
    _, folder, _ = bundle_run(config.output, target="compose", options=options(), output=tmp_path / "other")
    served = config.output / "model_repository" / "scorer" / "config.pbtxt"
    assert (folder / "model_repository" / "scorer" / "config.pbtxt").read_text() == served.read_text()


def options() -> Any:
    from deploy.plan import BundleOptions

    return BundleOptions(image="registry.example/triton:ours")


def engines_of(config: OptimizeConfig, ask: Any = loaded, on_event: Any = events.ignore) -> tuple[Engine, ...]:
    folder = Path(tempfile.mkdtemp(dir=config.output.parent))
    return own_engines(config, folder, on_gpu=False, ask=ask, on_event=on_event)[1]


def refused(config: OptimizeConfig, ask: Any = loaded) -> BadInput:
    before = fingerprint(config.repository or Path())
    with pytest.raises(BadInput) as raised:
        engines_of(config, ask)
    assert fingerprint(config.repository or Path()) == before
    assert "\n" not in raised.value.what + raised.value.fix
    return raised.value


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ("sequence_batching { }", "sequence"),
        ("model_transaction_policy { decoupled: true }", "decoupled"),
        ("ensemble_scheduling { step [ ] }", "ensemble"),
        ('platform: "ensemble"', "ensemble"),
    ],
)
def test_models_without_single_answers_are_refused(tmp_path: Path, more: str, word: str) -> None:
    written(tmp_path / "repository", "scorer", f"{PYTHON}{more}\n", {"1/model.py": ""})
    assert word in refused(own_config(tmp_path)).what


def test_a_kind_that_only_triton_completes_is_refused_as_well(tmp_path: Path) -> None:
    python_model(tmp_path / "repository")

    def decoupled(engine: Any) -> Any:
        return {**loaded(engine), "model_transaction_policy": {"decoupled": True}}

    assert "decoupled" in refused(own_config(tmp_path), decoupled).what


def test_a_model_that_does_not_load_is_quoted(tmp_path: Path) -> None:
    written(tmp_path / "repository", "scorer", BACKENDS["fil"][1], {"1/model.json": "{}"})

    def fails(engine: Any) -> Any:
        raise ModelLoadFailed(engine.model_name, "unable to find backend library for backend 'fil'")

    error = refused(own_config(tmp_path, server="embedded"), fails)
    assert "unable to find backend library for backend 'fil'" in error.what
    assert "--server docker" in error.fix
    assert "server.log" in refused(own_config(tmp_path), fails).fix


def test_a_text_that_is_no_configuration_is_named_by_its_line(tmp_path: Path) -> None:
    written(tmp_path / "repository", "scorer", "backend: 'python'\ninput {\n", {"1/model.py": ""})
    assert "line 2" in refused(own_config(tmp_path)).what
    (tmp_path / "repository" / "scorer" / "config.pbtxt").write_bytes(b"# gr\xfc\xdfe\n")
    assert "UTF-8" in refused(own_config(tmp_path)).what


def test_an_incomplete_configuration_needs_a_server(tmp_path: Path) -> None:
    python_model(tmp_path / "repository", config=None)
    assert "--dry-run" in refused(own_config(tmp_path), None).fix


def test_sizes_that_vary_are_asked_for(tmp_path: Path) -> None:
    written(tmp_path / "repository", "ranker", BACKENDS["onnxruntime_onnx"][1], {"1/model.onnx": ""})
    config = own_config(tmp_path, "ranker")
    assert "--shape ids:N" in refused(config).fix
    assert "mask" in refused(replace(config, shapes={"ids": (4,), "mask": (4,)})).what  # it is optional
    assert "ids" in refused(replace(config, shapes={"ids": (4, 4)})).what
    (engine,) = engines_of(replace(config, shapes={"ids": (9,)}))
    assert [(spec.name, spec.concrete_shape) for spec in engine.inputs] == [("ids", (9,))]


def test_batches_that_the_model_does_not_take_are_refused(tmp_path: Path) -> None:
    python_model(tmp_path / "repository")
    assert "--client-batch 9" in refused(own_config(tmp_path, client_batch=9)).what
    python_model(tmp_path / "repository", config=PYTHON.replace("max_batch_size: 8 ", "max_batch_size: 0 "))
    assert "--max-batch-size" in refused(own_config(tmp_path, max_batch_size=4)).what


def test_more_variants_than_can_be_measured_are_refused(tmp_path: Path) -> None:
    python_model(tmp_path / "repository")
    vary = (("a", ("1", "2", "3", "4")), ("b", ("1", "2", "3", "4")))
    assert "--vary" in refused(own_config(tmp_path, vary=vary)).what


@pytest.mark.parametrize(
    "field", ["default_queue_policy { max_queue_size: 9 }", "priority_levels: 2 default_priority_level: 1"]
)
def test_a_field_that_makes_triton_wait_is_noted(tmp_path: Path, field: str) -> None:
    python_model(tmp_path / "repository", config=f"{PYTHON}dynamic_batching {{ {field} }}\n")
    seen: list[Any] = []
    engines_of(own_config(tmp_path), on_event=seen.append)
    assert [note.warning for note in seen] == [True]


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
    assert space.max_batch_sizes == (1, 2, 4, 6)
    assert space.instance_counts == (2, 4, 8)
    assert space.intra_op_threads == (0,)
    assert space.baseline() == default_config(engine)
    larger = search_space((engine,), machine, limit_ms=50.0, largest_batch=16)
    assert larger.max_batch_sizes == (1, 2, 4, 6, 8, 16)


def from_options(root: Path, **given: str | tuple[str, ...] | Path | int) -> OptimizeConfig:
    values = {"model": "scorer", "output": root / "run", "repository": root / "repository", "p99": "50ms", **given}
    return config_from_options(values, by_flags(*given))[0]


def by_flags(*names: str) -> dict[str, Origin]:
    return {name: Origin(kind="flag", place=f"--{name}") for name in names}


def test_options_of_other_models_are_refused_at_once(tmp_path: Path) -> None:
    python_model(tmp_path / "repository")
    with pytest.raises(BadInput) as raised:
        from_options(tmp_path, precisions="fp16", accuracy="off", workers="auto")
    assert {"--precisions,", "--accuracy,", "--workers:"} <= set(raised.value.what.split())


def test_options_of_a_repository_need_one(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"--max-batch-size, --vary"):
        config_from_options(
            {
                "model": "m.onnx",
                "p99": "9ms",
                "output": tmp_path,
                "max_batch_size": 9,
                "vary": ("parameters.a=1",),
            },
            by_flags("max_batch_size", "vary"),
        )


def test_a_model_that_is_not_there_is_answered_with_those_that_are(tmp_path: Path) -> None:
    python_model(tmp_path / "repository", "other")
    with pytest.raises(BadInput) as raised:
        from_options(tmp_path)
    assert "other" in raised.value.fix
    (tmp_path / "repository" / "scorer").mkdir()
    with pytest.raises(BadInput, match="no version"):
        from_options(tmp_path)
    with pytest.raises(BadInput, match="cannot be read"):
        from_options(tmp_path, repository=tmp_path / "nowhere")


def test_trials_are_not_loaded_from_the_repository_itself(tmp_path: Path) -> None:
    python_model(tmp_path / "repository")
    with pytest.raises(BadInput, match="--server-repository"):
        from_options(
            tmp_path, server="remote", server_url="http://x:8000", server_repository=tmp_path / "repository"
        )


@pytest.mark.parametrize(
    "text", ["threads=1", "parameters.=1", "parameters.a=", 'parameters.a=1,"', "parameters.a"]
)
def test_vary_names_a_parameter_and_values(tmp_path: Path, text: str) -> None:
    python_model(tmp_path / "repository")
    with pytest.raises(BadInput, match="--vary"):
        from_options(tmp_path, vary=(text,))
