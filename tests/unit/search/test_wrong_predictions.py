"""The search on servers that are not what their profile says."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from simulated_bench import SimulatedBench
from virtual_search import search_on

from loadgen.statistics.probe import Probe
from search.labels import knobs_text
from search.simulator.service_times import ClosedLoop
from search.space import SearchSpace
from search.trials import events

pytestmark = pytest.mark.slow


class Changing(SimulatedBench):
    """Its executions take longer for a while, or less time."""

    @contextmanager
    def slower(self, factor: float) -> Iterator[None]:
        real = self.service_s
        self.service_s = lambda config, size: factor * real(config, size)
        try:
            yield
        finally:
            self.service_s = real


class Misleading(Changing):
    """Twice as fast under a closed loop as under real load."""

    def saturate(self, concurrency: Any, duration_s: Any, seed: Any, shape: int | None = None) -> ClosedLoop:
        with self.slower(0.5):
            return super().saturate(concurrency, duration_s, seed)


def test_predictions_that_are_off_alike_are_put_right(
    space: SearchSpace, tmp_path: Path, true_best: float
) -> None:
    _, certified, seen = search_on(Misleading(), space, tmp_path)
    assert not any(isinstance(event, events.Note) and "disagree" in event.text for event in seen)
    assert certified.winner.certificate.rate_per_s >= 0.85 * true_best


class Saturating(Changing):
    """Three times as slow above a rate, as behind a front end that has had enough: below it, a replay sees none of
    that."""

    def measure(self, rate_per_s: Any, duration_s: Any, seed: Any, watch: Any = None) -> Probe:
        with self.slower(3.0 if rate_per_s > FRONT_END_PER_S else 1.0):
            return super().measure(rate_per_s, duration_s, seed, watch)


FRONT_END_PER_S = 250.0


def test_no_estimate_is_above_a_rate_that_was_clearly_too_much(space: SearchSpace, tmp_path: Path) -> None:
    bench = Saturating()
    store, _, _ = search_on(bench, space, tmp_path, stop=lambda: len(bench.loaded) >= 8)
    refuted = 0
    for trial in store.trials:
        kept_per_s = max((run.rate_per_s for run in trial.load_runs if run.met), default=0.0)
        overloaded = (run.rate_per_s for run in trial.load_runs if run.overloaded)
        above = [rate for rate in overloaded if rate > kept_per_s]
        refuted += len(above)
        assert (trial.rate_at_limit_per_s or 0.0) < min(above, default=math.inf)
    assert refuted


class Warming(Changing):
    """Under real load each of the first configurations is slower than predicted, and by less than the one before:
    none says by how much the next is."""

    factors = (5.0, 3.7, 3.0, 2.2)

    def measure(self, rate_per_s: Any, duration_s: Any, seed: Any, watch: Any = None) -> Probe:
        name = knobs_text(self.loaded[-1])
        order = self.__dict__.setdefault("order", [])
        if name not in order:
            order.append(name)
        with self.slower(dict(enumerate(self.factors)).get(order.index(name), 1.0)):
            return super().measure(rate_per_s, duration_s, seed, watch)


def test_where_predictions_do_not_hold_the_sampler_goes_on(
    space: SearchSpace, tmp_path: Path, true_best: float
) -> None:
    store, certified, seen = search_on(Warming(), space, tmp_path, budget_s=600.0)
    assert any(isinstance(event, events.Note) and "disagree" in event.text for event in seen)
    assert len(store.trials) > 8
    # The slow trials count as slow phases of the machine, which the rate has to cover.
    assert certified.winner.certificate.rate_per_s >= 0.8 * true_best


class Hurried(SimulatedBench):
    """Every run ends after a second, as where a budget is nearly spent: a replay can use it, a verdict cannot."""

    def measure(self, rate_per_s: Any, duration_s: Any, seed: Any, watch: Any = None) -> Probe:
        return super().measure(rate_per_s, min(duration_s, 1.0), seed, watch)


def test_a_run_too_short_for_a_verdict_is_replayed_and_does_not_fail_its_trial(
    space: SearchSpace, tmp_path: Path
) -> None:
    bench = Hurried()
    store, _, _ = search_on(bench, space, tmp_path, stop=lambda: len(bench.loaded) >= 4)
    first = store.trials[0]
    assert first.load_runs[0].requests == 0
    assert first.state == "complete", first.reason
    assert first.rate_at_limit_per_s > 0
