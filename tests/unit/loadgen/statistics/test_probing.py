import dataclasses
import math

import numpy as np
import pytest
from simulated_queues import LONG_BURSTS, log_of

from loadgen.measurement.request_log import RequestLog
from loadgen.spec.limits import LatencyLimit
from loadgen.statistics.capacity_fit import Probe, evaluate_probe


def probe_of(log: RequestLog, *, overloaded: bool = False, problems: tuple[str, ...] = ()) -> Probe:
    return Probe(log=log, overloaded=overloaded, problems=problems)


def constant_log(rate: float, seconds: float, latency_s: float) -> RequestLog:
    times = np.arange(0, seconds, 1 / rate)
    return log_of(times, times + latency_s)


def test_headroom_is_limit_over_quantile() -> None:
    seen = evaluate_probe(
        probe_of(constant_log(500, 5, 0.01)), 500, limits=(LatencyLimit(limit_ms=30, quantile=0.99),)
    )
    assert seen.reading.headroom == pytest.approx(3, rel=0.1)
    assert seen.reading.error < 0.3
    assert seen.median_ms == pytest.approx(10)
    assert seen.answered_per_s == pytest.approx(500, rel=0.01)
    assert seen.load_s == pytest.approx(5, abs=0.05)
    assert not seen.overloaded


def test_longer_runs_are_surer() -> None:
    errors = []
    for seconds in (4, 60):
        log = next(LONG_BURSTS.logs(0.9 * LONG_BURSTS.rate_at_limit_per_s, seconds, seed=1, runs=1))
        errors.append(
            evaluate_probe(probe_of(log), 800, limits=(LatencyLimit(limit_ms=50, quantile=0.99),)).reading.error
        )
    assert errors[1] < errors[0]


@pytest.mark.parametrize("overloaded", [True, False])
def test_overloaded_is_what_the_generator_says_or_most_requests_show(overloaded: bool) -> None:
    latency_s = 0.01 if overloaded else 0.1
    seen = evaluate_probe(
        probe_of(constant_log(500, 5, latency_s), overloaded=overloaded),
        500,
        limits=(LatencyLimit(limit_ms=30, quantile=0.99),),
    )
    assert seen.overloaded
    # What the generator calls overloaded has no headroom; where most requests are late, it is hardly known.
    assert seen.reading.headroom == 0 if overloaded else seen.reading.error >= 0.5


def test_failures_leave_no_headroom() -> None:
    log = constant_log(500, 5, 0.01)
    failing = dataclasses.replace(log, outcome=np.full(len(log.outcome), 2, np.uint8))
    seen = evaluate_probe(probe_of(failing), 500, limits=(LatencyLimit(limit_ms=30, quantile=0.99),))
    assert seen.reading.headroom == 0
    assert seen.median_ms == math.inf
    assert seen.answered_per_s == 0


def test_an_empty_run_is_no_reason_to_fail() -> None:
    seen = evaluate_probe(
        probe_of(log_of(np.empty(0), np.empty(0))), 1, limits=(LatencyLimit(limit_ms=30, quantile=0.99),)
    )
    assert seen.reading.headroom == 0
    assert seen.load_s == 0


@pytest.mark.parametrize("quantile", [0.5, 0.9, 0.999])
def test_other_quantiles_have_readings_too(quantile: float) -> None:
    seen = evaluate_probe(
        probe_of(constant_log(500, 5, 0.01)), 500, limits=(LatencyLimit(limit_ms=30, quantile=quantile),)
    )
    assert 2 < seen.reading.headroom <= 3
