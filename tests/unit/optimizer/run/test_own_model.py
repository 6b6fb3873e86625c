"""A model of a user's own repository through the whole flow in virtual time, and what is refused."""

import io
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from own_repositories import MODEL, PYTHON, engines_of, fingerprint, loaded, own_config, python_model, written
from rich.console import Console
from simulated_bench import SimulatedBench
from true_rates import best_rate, true_rate

from loadgen.errors import BadInput
from model_repo.spec import ServingConfig
from optimizer.config import OptimizeConfig
from optimizer.machine.stalls import SchedulingStalls
from optimizer.reports.report import markdown_report
from optimizer.reports.terminal import recommendation_view
from optimizer.run.bundle import bundle_run, winner_of
from optimizer.run.own_model import own_engines
from optimizer.run.pipeline import optimize
from optimizer.run.prepare import Prepared, prepare, read_inputs
from optimizer.run_file import save_config, saved_config
from search.answer.explain import explain_trial
from search.records.recommendation import RecommendationRecord
from search.records.run_files import read_recommendation
from search.trials import events


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
        measure_front_ends=lambda config, prepared: None,
    )


def prepared_in(config: OptimizeConfig) -> Prepared:
    return prepare(config, read_inputs(config, work_dir=config.output / "again"), ask_server=loaded)


def same(config: ServingConfig, found: RecommendationRecord) -> bool:
    """True but for the queue delay, which hardly matters under load."""
    winner = found.winner.config
    mine = (config.max_batch_size, config.instance_count, config.dynamic_batching)
    return mine == (winner.max_batch_size, winner.instance_count, winner.dynamic_batching)


@pytest.mark.slow
def test_the_answer_is_the_users_own_text_with_a_few_fields_changed(tmp_path: Path) -> None:
    folder = python_model(tmp_path / "repository")
    config = own_config(tmp_path, vary=(("parameters.factor", ("2", "3")),))
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
    space = prepared_in(config).space
    grid = [space.config(knobs) for knobs in space.points() if knobs["max_queue_delay_us"] == 0]
    winner = next(one for one in grid if one.engine.precision == "python factor=3" and same(one, found))
    truth = true_rate(winner, service_s, limit_ms=50.0)
    assert truth > 0.95 * best_rate(grid, service_s, limit_ms=50.0)
    assert found.winner.certificate is not None
    assert found.winner.certificate.rate_per_s < 1.02 * truth
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
    report = markdown_report(tmp_path / "run")
    assert f"```diff\n{found.config_diff}```" in report
    assert "as configured" in report
    assert "Triton default" not in report
    assert "your own" in explain_trial(tmp_path / "run", found.baseline.number).why[0]
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(recommendation_view(found))
    shown = console.export_text()
    assert all(line.rstrip() in shown for line in found.config_diff.splitlines())
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


@pytest.mark.slow
def test_a_run_is_resumed_and_its_bundle_is_rendered_again(tmp_path: Path) -> None:
    policy = "default_queue_policy { max_queue_size: 64 }"
    batcher = f"dynamic_batching {{ max_queue_delay_microseconds: 700 {policy} }}\n"
    python_model(tmp_path / "repository", config="")
    written(tmp_path / "repository", "scorer", None, {"configs/h100.pbtxt": PYTHON + batcher})
    vary = (("parameters.factor", ("2",)),)
    config = own_config(tmp_path, client_batch=2, vary=vary, model_config_name="h100")
    config.output.mkdir()
    save_config(config, config.output)
    first = found_in(config)
    assert first.baseline is not None
    assert (first.baseline.config.max_batch_size, first.baseline.config.max_queue_delay_us) == (8, 700)
    again = saved_config(config.output)
    assert (again.model, again.repository, again.vary) == ("scorer", tmp_path / "repository", config.vary)
    found = found_in(replace(again, time_budget_s=300.0))
    assert found.winner.certificate is not None
    assert found.config_diff is not None
    assert "--- a/scorer/configs/h100.pbtxt\n+++ b/scorer/configs/h100.pbtxt\n" in found.config_diff
    winner = winner_of(config.output, read_recommendation(config.output))
    assert winner.instance_count == found.winner.config.instance_count
    _, folder, _ = bundle_run(config.output, target="compose", options=options(), output=tmp_path / "other")
    served = config.output / "model_repository" / "scorer" / "config.pbtxt"
    assert (folder / "model_repository" / "scorer" / "config.pbtxt").read_text() == served.read_text()
    assert policy in served.read_text()


def test_a_variant_has_the_fields_that_differ_from_the_configured_ones(tmp_path: Path) -> None:
    python_model(tmp_path / "repository", config=PYTHON + "optimization { graph { level: 1 } }\n")
    vary = (("optimization.graph.level", ("1", "2")), ("dynamic_batching.preferred_batch_size", ("4",)))
    engines = engines_of(own_config(tmp_path, vary=vary))
    assert [engine.precision for engine in engines] == [
        "python",
        "python preferred_batch_size=4",
        "python graph.level=2 preferred_batch_size=4",
    ]
    owns = [engine.own for engine in engines if engine.own is not None]
    assert [(own.dynamic_batching, own.preferred_batch_sizes) for own in owns] == [
        (False, ()),
        (True, (4,)),
        (True, (4,)),
    ]
    assert ["level: 2" in own.text for own in owns] == [False, False, True]


def test_instance_groups_are_varied_one_by_one(tmp_path: Path) -> None:
    python_model(tmp_path / "repository")
    engines = engines_of(own_config(tmp_path, vary=(("instance_group.1.count", ("1", "3")),)))
    assert [engine.own.counts for engine in engines if engine.own is not None] == [(1, 1), (1, 3)]
    with pytest.raises(BadInput, match="--vary"):
        engines_of(own_config(tmp_path, vary=(("instance_group.2.count", ("1",)),)))


def options() -> Any:
    from deploy.plan import BundleOptions

    return BundleOptions(image="registry.example/triton:ours")
