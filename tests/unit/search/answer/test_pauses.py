"""Pauses of the machine explain the slowest requests, or not."""

from dataclasses import replace

import numpy as np
import pytest
from engines import plain_engine
from recommendations import certificate, trial

from loadgen.spec.limits import LatencyLimit
from model_repo.spec import ServingConfig
from search.answer.conclusion import RunEvidence, conclude
from search.answer.pauses import Pauses, pauses_of
from search.records.slo import Slo
from search.trials.bench import ObservedRun

CONFIG = ServingConfig(engine=plain_engine(), max_batch_size=8)
LIMIT_S = 0.05


def served(
    *, rate_per_s: float = 2000.0, pause_s: float = 0.0, every_s: float = 2.0, slow: float = 1.0, seed: int = 0
) -> ObservedRun:
    """A run of 12 s on a server that pauses; in the last fifth of each 3 s it takes `slow` times as long."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / rate_per_s, int(12 * rate_per_s)))
    free, next_s, done = 0.0, every_s, np.zeros(len(arrivals))
    for index, arrival in enumerate(arrivals):
        begins = max(free, arrival)
        if begins >= next_s:
            begins, next_s = begins + pause_s, next_s + every_s
        free = begins + 0.0002 * (slow if begins % 3 > 2.4 else 1.0)
        done[index] = free + 0.001
    return ObservedRun(config=CONFIG, sent_s=arrivals - arrivals[0], taken_s=done - arrivals)


def found(*runs: ObservedRun) -> Pauses | None:
    return pauses_of(runs, limit_s=LIMIT_S, quantile=0.99)


def test_pauses_have_their_length_and_distance() -> None:
    seen = found(served(pause_s=0.04), served(pause_s=0.04, seed=1))
    assert seen is not None
    assert seen.short_s == pytest.approx(0.04, abs=0.002)
    assert seen.long_s == pytest.approx(0.04, abs=0.002)
    assert seen.every_s == pytest.approx(2.0, rel=0.3)
    assert seen.share > 0.8
    assert seen.configurations == 1


@pytest.mark.parametrize(
    "run",
    [
        served(),
        served(rate_per_s=30.0),  # nobody waits in most of the time without answers
        served(slow=3.0),  # a slow phase answers all the time
        served(pause_s=0.008),  # far below the limit
        served(pause_s=0.04, every_s=7.0),  # once
        served(rate_per_s=5600.0, pause_s=0.04),  # overloaded
    ],
    ids=["steady", "rare requests", "slow phases", "short", "once", "overloaded"],
)
def test_other_latencies_are_no_pauses(run: ObservedRun) -> None:
    assert found(run) is None


def test_nothing_is_known_without_runs() -> None:
    assert found() is None


def test_a_run_whose_machine_paused_says_so_whatever_came_of_it() -> None:
    pauses = found(served(pause_s=0.04), served(pause_s=0.04, seed=1))
    assert pauses is not None
    slo = Slo(limits=(LatencyLimit(limit_ms=50.0),))
    winner = trial(certificate=certificate())
    for evidence in (
        RunEvidence(slo=slo, trials=(winner,), winner=winner),
        RunEvidence(slo=slo, trials=(trial(),)),
    ):
        before, after = conclude(evidence), conclude(replace(evidence, pauses=pauses))
        assert (after.status, after.reason) == (before.status, before.reason)
        assert pauses.text in after.advice
        assert before.advice in after.advice


def test_answers_that_the_front_end_lost_are_named_with_the_rate() -> None:
    evidence = RunEvidence(slo=Slo(limits=(LatencyLimit(limit_ms=50.0),)), trials=(trial(),), lost=(12_583.0, 434))
    assert "12,583/s" in conclude(evidence).advice
    assert "434" in conclude(evidence).advice
    assert "--protocol grpc" in conclude(evidence).advice
