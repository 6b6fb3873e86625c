"""Machines that change and servers that misbehave, in virtual time: noticed, and nothing promised that breaks."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulated_bench import SimulatedBench, default_service_s
from spaces import two_core_space
from true_rates import true_rate
from virtual_search import SLO, search_on

from loadgen.measurement.request_log import RequestLog
from loadgen.statistics.probe import Probe
from loadgen.status import MALFORMED, UNFINISHED
from model_repo.spec import ServingConfig
from search.answer.conclusion import RunEvidence, conclude
from search.records.confirmations import read_confirmations
from search.records.run_files import TRIALS_FILE, read_trials
from search.simulator.service_times import ClosedLoop
from search.trials.bench import BenchFailed
from search.workload import Workload

pytestmark = pytest.mark.long


def changing(after_load_s: float, factor: float) -> SimulatedBench:
    """A machine on which everything takes `factor` times as long after so many seconds of load."""
    bench = SimulatedBench()

    def service_s(config: ServingConfig, size: int) -> float:
        return default_service_s(config, size) * (factor if bench.spent.load_s > after_load_s else 1.0)

    bench.service_s = service_s
    return bench


def slower(factor: float) -> Callable[[ServingConfig, int], float]:
    return lambda config, size: factor * default_service_s(config, size)


@pytest.mark.parametrize("factor", [1.7, 0.6])
def test_a_clock_that_changes_half_way_makes_no_promise_that_the_slower_one_breaks(
    factor: float, tmp_path: Path
) -> None:
    _, certified, _ = search_on(changing(14.0, factor), two_core_space(tmp_path), tmp_path)
    assert certified is not None
    before, after = (
        true_rate(certified.winner.served, slower(each), limit_ms=SLO.first.limit_ms) for each in (1.0, factor)
    )
    assert 0.6 * min(before, after) <= certified.winner.certificate.rate_per_s <= 1.03 * after


def unsteady_bench(*, steady_s: float, first: int) -> SimulatedBench:
    """A machine that after `steady_s` of load has another speed in each run: 1, 2.2 and 1.5 times the time."""
    bench = SimulatedBench()
    calls = iter(range(first, 10_000))
    factor = [1.0]

    def unsteady(config: ServingConfig, size: int) -> float:
        return factor[0] * default_service_s(config, size)

    def before_each(kind: Any) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            factor[0] = 1.0 if bench.spent.load_s < steady_s else (1.0, 2.2, 1.5)[next(calls) % 3]
            return kind(*arguments, **options)

        return wrapped

    bench.service_s = unsteady
    bench.measure, bench.saturate = before_each(bench.measure), before_each(bench.saturate)  # type: ignore[method-assign]
    return bench


@pytest.mark.parametrize(("steady_s", "first"), [(3.0, 0), (6.0, 1), (9.0, 2)])
def test_a_speed_that_goes_up_and_down_is_covered_at_its_slowest(
    steady_s: float, first: int, tmp_path: Path
) -> None:
    bench = unsteady_bench(steady_s=steady_s, first=first)
    store, certified, _ = search_on(bench, two_core_space(tmp_path), tmp_path)
    assert len(store.trials) > 1
    assert certified is not None
    slowest = true_rate(certified.winner.served, slower(2.2), limit_ms=SLO.first.limit_ms)
    assert 0.4 * slowest <= certified.winner.certificate.rate_per_s <= 1.03 * slowest


class Hanging(SimulatedBench):
    """Takes requests and never answers, with instances of one thread."""

    def measure(self, rate_per_s: Any, duration_s: Any, seed: Any, watch: Any = None) -> Probe:
        probe = super().measure(rate_per_s, duration_s, seed, watch)
        return replace(probe, log=self._unanswered(probe.log))

    def saturate(self, concurrency: Any, duration_s: Any, seed: Any, shape: int | None = None) -> ClosedLoop:
        loop = super().saturate(concurrency, duration_s, seed)
        hangs = self.loaded[-1].intra_op_threads == 1
        return replace(loop, log=self._unanswered(loop.log), batches=() if hangs else loop.batches)

    def _unanswered(self, log: RequestLog) -> RequestLog:
        if self.loaded[-1].intra_op_threads != 1:
            return log
        given_up = log.scheduled_ns + 5_000_000_000
        return replace(log, done_ns=given_up, outcome=np.full(len(log), UNFINISHED, np.uint8))


class Wrong(SimulatedBench):
    """Answers with nothing in it, with instances of one thread: the client says so before it sends load."""

    def measure(self, rate_per_s: Any, duration_s: Any, seed: Any, watch: Any = None) -> Probe:
        self._refuse()
        return super().measure(rate_per_s, duration_s, seed, watch)

    def saturate(self, concurrency: Any, duration_s: Any, seed: Any, shape: int | None = None) -> ClosedLoop:
        self._refuse()
        return super().saturate(concurrency, duration_s, seed)

    def _refuse(self) -> None:
        if self.loaded[-1].intra_op_threads == 1:
            raise BenchFailed("m answered without data")


class NowAndThenWrong(SimulatedBench):
    """Three answers in a hundred are soon there and of no use, with instances of one thread."""

    def measure(self, rate_per_s: Any, duration_s: Any, seed: Any, watch: Any = None) -> Probe:
        probe = super().measure(rate_per_s, duration_s, seed, watch)
        if self.loaded[-1].intra_op_threads != 1:
            return probe
        wrong = np.random.default_rng(seed).random(len(probe.log)) < 0.03
        return replace(probe, log=replace(probe.log, outcome=np.where(wrong, MALFORMED, 0).astype(np.uint8)))


@pytest.mark.parametrize("kind", [Hanging, Wrong, NowAndThenWrong])
def test_what_hangs_or_answers_wrongly_costs_its_trials_not_the_run(
    kind: type[SimulatedBench], tmp_path: Path
) -> None:
    bench, space = kind(), two_core_space(tmp_path)
    store, certified, _ = search_on(bench, space, tmp_path)
    assert certified is not None
    assert certified.winner.served.intra_op_threads != 1
    capacity = true_rate(certified.winner.served, default_service_s, limit_ms=SLO.first.limit_ms)
    assert 0.8 * capacity <= certified.winner.certificate.rate_per_s <= 1.03 * capacity
    assert not any(t.state == "complete" for t in store.trials if t.served.intra_op_threads == 1)
    assert len(read_trials(tmp_path)) == len(store.trials)


def test_an_input_size_that_misses_the_limit_alone_is_told_and_nothing_is_promised(tmp_path: Path) -> None:
    """One execution in 33 is of a size that takes 200 ms or more, whatever the rate."""
    noise = np.ones(33)
    noise[7] = 50.0
    bench = SimulatedBench(noise=noise, workload=Workload(predictable=False))
    store, certified, _ = search_on(bench, two_core_space(tmp_path), tmp_path)
    assert certified is None
    assert len(read_trials(tmp_path)) == len(store.trials)
    trials, confirmations = read_trials(tmp_path), read_confirmations(tmp_path)
    told = conclude(RunEvidence(slo=SLO, trials=trials, confirmations=confirmations))
    assert "requests were late or failed" in told.reason
    within_reach = re.search(r"--p99 ([0-9.]+)ms", told.advice)
    assert within_reach is not None
    assert float(within_reach[1]) > 3 * SLO.first.limit_ms


def test_what_was_measured_beside_a_neighbour_is_marked_and_promises_less(tmp_path: Path) -> None:
    bench = SimulatedBench(service_s=slower(1.8), taken_cores=lambda load_s: 0.9)
    store, certified, _ = search_on(bench, two_core_space(tmp_path), tmp_path)
    assert certified is not None
    certificate = certified.winner.certificate
    assert certificate.contention.marked
    assert certificate.contention.watched_s > certificate.seconds * 0.99
    for trial in read_trials(tmp_path):
        assert trial.contention.text.startswith("other processes took 0.9 cores for ")
        assert trial.contention.watched_s == pytest.approx(trial.load_s)
    capacity = true_rate(certified.winner.served, default_service_s, limit_ms=SLO.first.limit_ms)
    assert certificate.rate_per_s <= capacity
    assert len(read_trials(tmp_path)) == len(store.trials)


def test_a_neighbour_that_leaves_marks_only_what_it_disturbed(tmp_path: Path) -> None:
    bench = SimulatedBench(taken_cores=lambda load_s: 0.0 if (tmp_path / TRIALS_FILE).exists() else 0.9)
    store, certified, _ = search_on(bench, two_core_space(tmp_path), tmp_path)
    marks = [trial.contention.marked for trial in store.trials]
    assert marks == [True] + [False] * (len(marks) - 1)
    assert len(marks) > 1
    assert not certified.winner.certificate.contention.marked


def test_a_neighbour_that_comes_and_goes_makes_no_promise_that_the_quiet_machine_breaks(tmp_path: Path) -> None:
    bench = SimulatedBench()

    def service_s(config: ServingConfig, size: int) -> float:
        return default_service_s(config, size) * (1.6 if 12.0 < bench.spent.load_s < 24.0 else 1.0)

    bench.service_s = service_s
    _, certified, _ = search_on(bench, two_core_space(tmp_path), tmp_path)
    assert certified is not None
    capacity = true_rate(certified.winner.served, default_service_s, limit_ms=SLO.first.limit_ms)
    assert 0.6 * capacity <= certified.winner.certificate.rate_per_s <= 1.03 * capacity
