"""The front door: one request, one result, and nothing served before the trials of the directory are read."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from simulated_bench import BudgetOfLoad, SimulatedBench, default_service_s
from virtual_search import SLO

from loadgen.errors import BadInput
from loadgen.spec.limits import LatencyLimit
from loadgen.statistics.probe import Probe
from search.cost.cost import PriceRecord
from search.find_best import NothingFound, SearchRequest, SearchResult, find_best
from search.records.run_files import PREDICTIONS_FILE, TRIALS_FILE, PredictedRecord, read_records, read_trials
from search.records.slo import Slo
from search.restriction import Restriction, restricted
from search.space import SearchSpace, knobs_of
from search.trials import events

PRICE = PriceRecord(usd_per_hour=2.0, source="test", as_of="2026-01-01", describes="a replica")


class ServedBench(SimulatedBench):
    """Knows how long a replica takes to start."""

    def replica_start_s(self, config: object) -> float | None:
        return 3.0


@dataclass
class NotedRates(ServedBench):
    """Notes the rates that it is sent."""

    rates_per_s: list[float] = field(default_factory=list)

    def measure(self, rate_per_s: float, *rest: Any, **named: Any) -> Probe:
        self.rates_per_s.append(rate_per_s)
        return super().measure(rate_per_s, *rest, **named)


def found(space: SearchSpace, folder: Path, bench: SimulatedBench, **changes: Any) -> SearchResult:
    """What a short search finds; the bench may only be entered once."""
    seen: list[events.Event] = changes.pop("seen", [])

    @contextmanager
    def once() -> Iterator[Any]:
        seen.append(events.Note(text="served"))
        yield bench
        seen.append(events.Note(text="left"))

    known = {"space": space, "directory": folder, "slo": SLO, "price": PRICE, "seed": 3, "storage": "sqlite://"}
    budget = BudgetOfLoad(total_s=changes.pop("budget_s", 90.0), spent=bench.spent)
    return find_best(SearchRequest(**{**known, **changes}), once(), budget=budget, on_event=seen.append)


class TheirBench(SimulatedBench):
    """On a server that others run."""

    def replica_start_s(self, config: object) -> float | None:
        return None


@pytest.mark.parametrize("bench", [ServedBench, TheirBench])
def test_only_a_server_that_was_restarted_is_called_that(space: SearchSpace, tmp_path: Path, bench: Any) -> None:
    result = found(space, tmp_path, bench())
    assert result.conclusion.status == "certified"
    assert ("restarted" in result.conclusion.reason) == (bench is ServedBench)


def test_the_result_has_all_that_a_recommendation_needs(space: SearchSpace, tmp_path: Path) -> None:
    bench, seen = ServedBench(), list[events.Event]()
    result = found(space, tmp_path, bench, rate_to_serve_per_s=5000.0, seen=seen)
    promised = result.winner.certificate.rate_per_s
    assert result.cost.replicas * promised >= 5000.0
    assert result.baseline.served == space.baseline()
    assert result.baseline.certificate is None
    assert result.gain > 1
    assert result.cost.baseline_cost_per_million_inferences_usd == pytest.approx(
        result.gain * result.cost.cost_per_million_inferences_usd
    )
    assert bench.spent.load_s <= 90.0
    assert all(other.number != result.winner.number for other in result.alternatives)
    assert [point.rate_per_s for point in result.frontier] == sorted(point.rate_per_s for point in result.frontier)
    assert result.served.replica_start_s == 3.0
    assert (result.load_s, result.loading_s) == (bench.spent.load_s, bench.spent.loading_s)
    seconds = result.seconds(result.load_s + result.loading_s + 7.0)
    assert (seconds.load, seconds.loading_models, seconds.other) == pytest.approx(
        (result.load_s, result.loading_s, 7.0)
    )
    phases = [event.name for event in seen if isinstance(event, events.PhaseStarted)]
    assert list(dict.fromkeys(phases)) == ["search", "profile", "certify"]
    assert isinstance(seen[-1], events.Note)
    assert seen[-1].text == "left"
    assert result.winner.number in {trial.number for trial in read_trials(tmp_path)}
    predicted = read_records(tmp_path / PREDICTIONS_FILE, PredictedRecord, what="a prediction")
    curves = {record.config: record.curve for record in predicted if record.curve}
    assert set(curves) == {result.winner.config, result.baseline.config}
    for curve in curves.values():  # from far below the capacity to beyond the limit
        assert curve[0][1] < SLO.first.limit_ms < curve[-1][1]
    shown = [(one.config.max_batch_size, one.config.instance_count) for one in predicted if not one.curve]
    assert len(shown) == len(set(shown)) > 4


def test_an_slo_that_nothing_meets_is_explained_after_the_server_has_gone(
    space: SearchSpace, tmp_path: Path
) -> None:
    seen = list[events.Event]()
    slo = Slo(limits=(LatencyLimit(limit_ms=1.0),))
    bench = NotedRates(limit_ms=1.0)
    with pytest.raises(NothingFound, match="p99 within 1 ms") as caught:
        found(space, tmp_path, bench, slo=slo, seen=seen)
    assert caught.value.status == "violated"
    assert isinstance(seen[-1], events.Note)
    assert seen[-1].text == "left"
    fastest_s = min(default_service_s(config, 1) for config in bench.loaded)
    assert bench.rates_per_s, "lone requests are counted, as evidence"
    assert max(bench.rates_per_s) * fastest_s < 0.3, "requests were hardly to meet"


def test_nothing_is_served_for_a_directory_that_cannot_be_read(space: SearchSpace, tmp_path: Path) -> None:
    (tmp_path / TRIALS_FILE).write_text("{}\n")
    seen = list[events.Event]()
    with pytest.raises(BadInput):
        found(space, tmp_path, ServedBench(), seen=seen)
    assert seen == []


def only(space: SearchSpace, **values: tuple[int, ...]) -> SearchSpace:
    return restricted(space, Restriction(values=values))


def test_the_search_stays_within_what_is_wanted(space: SearchSpace, tmp_path: Path) -> None:
    narrow = only(space, max_batch_size=(1,), instance_count=(1,), intra_op_threads=(1,))
    result = found(narrow, tmp_path, ServedBench(service_s=lambda _config, _rows: 0.005))
    assert narrow.has(knobs_of(result.winner.served))
    assert result.baseline.served == narrow.baseline()
    assert result.gain < 1  # Triton's default is better, and not wanted
    assert result.alternatives == ()
    others = [trial for trial in read_trials(tmp_path) if trial.number != result.baseline.number]
    assert {trial.config.max_batch_size for trial in others} == {1}


def test_delays_without_0_are_searched(space: SearchSpace, tmp_path: Path) -> None:
    result = found(only(space, max_queue_delay_us=(2500,), max_batch_size=(8, 16)), tmp_path, ServedBench())
    assert result.winner.config.max_queue_delay_us == 2500


class WithoutStatistics(ServedBench):
    """Cannot be profiled, so that the sampler searches."""

    def saturate(self, *args: Any, **changes: Any) -> Any:
        return replace(super().saturate(*args, **changes), batches=())


def test_the_sampler_stays_within_what_is_wanted(space: SearchSpace, tmp_path: Path) -> None:
    narrow = only(space, max_batch_size=(2, 6), instance_count=(2,), max_queue_delay_us=(700,))
    found(narrow, tmp_path, WithoutStatistics())
    _, *others = read_trials(tmp_path)
    assert others
    assert {trial.config.max_queue_delay_us for trial in others} == {700}
    assert {trial.config.instance_count for trial in others} == {2}


def test_the_start_is_trial_1_and_compared_with(space: SearchSpace, tmp_path: Path) -> None:
    odd = {"instance_count": 3, "intra_op_threads": 1, "max_queue_delay_us": 300, "max_batch_size": 6}
    start = replace(space.config({**knobs_of(space.baseline()), **odd}), preferred_batch_sizes=(3,))
    result = found(replace(space, start=start), tmp_path, ServedBench(), budget_s=150.0)
    first, second, *_ = read_trials(tmp_path)
    assert (first.why.cause, second.why.cause) == ("baseline", "start")
    assert second.config.preferred_batch_sizes == (3,)
    assert (result.start.number, result.start.served) == (1, start)
    assert result.winner.certificate.rate_per_s > result.start.rate_at_limit_per_s


def test_a_start_that_is_excluded_is_not_the_answer(space: SearchSpace, tmp_path: Path) -> None:
    start = space.config({**knobs_of(space.baseline()), "max_batch_size": 64, "intra_op_threads": 1})
    narrow = only(replace(space, start=start), max_batch_size=(1,), instance_count=(2,))
    result = found(narrow, tmp_path, WithoutStatistics(service_s=lambda _config, _rows: 0.005))
    assert result.start.served == start
    assert result.winner.config.max_batch_size == 1
