"""Tests of the whole flow in virtual time: prepare a model, search on a simulated server, write all files."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from onnx_models import small_cnn
from simulated_bench import SimulatedBench, default_service_s
from simulated_optimize import on_simulated
from true_rates import true_rate

from loadgen.spec.limits import LatencyLimit
from optimizer.config import OptimizeConfig
from optimizer.machine.stalls import MachineStalls
from optimizer.run_file import saved_config
from search.find_best import NothingFound
from search.records.recommendation import FrontEndsRecord, RecommendationRecord
from search.records.run_files import whole_lines
from search.records.trial import TrialRecord
from search.trials import events

pytestmark = pytest.mark.slow

PRICE = 2.0
RATE = 5000.0


class Flow:
    """Runs `optimize` on a simulated server; its clock is the bench's seconds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = OptimizeConfig(
            limits=(LatencyLimit(limit_ms=50.0),),
            model=small_cnn(folder / "cnn.onnx"),
            output=folder / "run",
            server="docker",
            precisions=("fp32",),
            price_per_hour_usd=PRICE,
            rate_to_serve_per_s=RATE,
            time_budget_s=200.0,
            cache_dir=folder / "cache",
            pareto=True,
            seed=3,
        )
        self.config.output.mkdir()
        self.bench = SimulatedBench()
        self.seen: list[Any] = []
        self.delays_ms: tuple[float, ...] = (0.1,)
        self.front_ends: FrontEndsRecord | None = None

    def run(self, *, stop: Callable[[], bool] = lambda: False, **changes: Any) -> RecommendationRecord:
        search = on_simulated(self.bench, *self.delays_ms, front_ends=self.front_ends)
        return search(replace(self.config, **changes), on_event=self.seen.append, stop=stop)

    def trials(self) -> list[Any]:
        return [TrialRecord.model_validate_json(line) for line in whole_lines(self.config.output / "trials.jsonl")]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Flow, RecommendationRecord]:
    flow = Flow(tmp_path_factory.mktemp("flow"))
    return flow, flow.run()


def test_the_phases_come_in_order(finished: Any) -> None:
    flow, _ = finished
    phases = [event.name for event in flow.seen if isinstance(event, events.PhaseStarted)]
    assert list(dict.fromkeys(phases)) == ["prepare", "search", "profile", "certify", "finish"]
    assert not [event for event in flow.seen if isinstance(event, events.Note) and event.warning]


def test_the_answer_keeps_the_limit_in_truth_and_beats_tritons_default(finished: Any) -> None:
    flow, found = finished
    served = {config: true_rate(config, default_service_s, limit_ms=50.0) for config in set(flow.bench.loaded)}
    truths = {trial_key(config): rate for config, rate in served.items()}
    winner, baseline = found.winner, found.baseline
    promised = winner.certificate.rate_per_s
    assert 0.85 * truths[record_key(winner)] < promised <= 1.02 * truths[record_key(winner)]
    assert truths[record_key(winner)] > 0.9 * max(truths.values())
    assert baseline.config.max_batch_size == 4
    assert truths[record_key(baseline)] < truths[record_key(winner)]
    assert found.gain > 0.05
    assert found.status == "certified"
    assert "twice" in found.status_reason


def trial_key(config: Any) -> tuple[Any, Any, Any, Any]:
    return config.max_batch_size, config.max_queue_delay_us, config.instance_count, config.intra_op_threads


def record_key(trial: Any) -> Any:
    return trial_key(trial.config)


def test_every_file_is_written_and_says_the_same(finished: Any) -> None:
    flow, found = finished
    output = flow.config.output
    assert RecommendationRecord.model_validate_json((output / "recommendation.json").read_text()) == found
    trials = flow.trials()
    assert [trial.number for trial in trials] == list(range(len(trials)))
    assert found.winner.number in {trial.number for trial in trials}
    pbtxt = (output / "model_repository" / "cnn" / "config.pbtxt").read_text()
    assert f"max_batch_size: {found.winner.config.max_batch_size}" in pbtxt
    assert (output / "model_repository" / "cnn" / "1").is_dir()
    assert (output / "study.db").stat().st_size
    assert str(found.winner.config.max_batch_size) in (output / "bundle" / "README.md").read_text()
    assert found.seconds.load == pytest.approx(flow.bench.spent.load_s)
    assert found.seconds.total <= flow.config.time_budget_s * 1.1
    assert sum(stage.load for stage in found.seconds.stages) == pytest.approx(found.seconds.load)
    assert sum(stage.seconds for stage in found.seconds.stages) == pytest.approx(found.seconds.total)
    assert [step.step for step in found.seconds.preparation] == [
        "reading the model, proof of its batch",
        "check of the machine",
        "check of the server",
        "choice of the protocol",
    ]
    assert found.served.replica_start_s == 3.0
    assert found.model.name == "cnn"
    assert found.frontier


def test_one_that_is_resumed_goes_on_and_keeps_what_it_had(tmp_path: Path) -> None:
    """Requests carry two batch items here: a million inferences are half as many requests."""
    flow, rows = Flow(tmp_path), 2
    flow.run(stop=lambda: len(flow.bench.loaded) >= 3, client_batch=rows)
    first = flow.trials()
    assert first
    flow.bench = SimulatedBench()
    found = flow.run(stop=lambda: len(flow.trials()) > len(first), client_batch=rows)
    trials = flow.trials()
    assert trials[: len(first)] == first
    assert len(trials) > len(first)
    requests_per_hour = 3600 * found.winner.certificate.rate_per_s
    assert found.cost.cost_per_million_inferences_usd == pytest.approx(1e6 * PRICE / (rows * requests_per_hour))


def test_the_protocol_that_lets_more_through_is_that_of_all_files(tmp_path: Path) -> None:
    flow = Flow(tmp_path)
    flow.front_ends = FrontEndsRecord(http=(4900.0, 5000.0), grpc=(9800.0, 9700.0))
    found = flow.run()
    assert found.workload.protocol == flow.bench.workload.record.protocol == "grpc"
    assert found.let_through == flow.front_ends
    assert saved_config(flow.config.output).protocol == "grpc"
    assert "grpc://" in (flow.config.output / "bundle" / "kubernetes" / "smoke" / "job.yaml").read_text()


def test_a_machine_that_stalls_longer_than_the_limit_is_refused_before_any_load(tmp_path: Path) -> None:
    flow = Flow(tmp_path)
    flow.delays_ms = (0.1, 60.0)
    with pytest.raises(MachineStalls):
        flow.run()
    assert flow.bench.loaded == []
    with pytest.raises(NothingFound, match="Interrupted"):
        flow.run(despite_noise=True, stop=lambda: bool(flow.bench.loaded))
    assert flow.bench.loaded
    (note,) = [event for event in flow.seen if isinstance(event, events.Note) and event.warning]
    assert note.text.startswith("This machine is not quiet: ")
