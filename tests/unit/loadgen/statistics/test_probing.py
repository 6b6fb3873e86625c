import numpy as np
import pytest
from simulated_queues import log_of

from loadgen.measurement.request_log import RequestLog
from loadgen.spec.limits import LatencyLimit
from loadgen.statistics.probe import Probe, evaluate_probe


def probe_of(log: RequestLog, *, overloaded: bool = False, problems: tuple[str, ...] = ()) -> Probe:
    return Probe(log=log, overloaded=overloaded, problems=problems)


def constant_log(rate: float, seconds: float, latency_s: float) -> RequestLog:
    times = np.arange(0, seconds, 1 / rate)
    return log_of(times, times + latency_s)


P99 = (LatencyLimit(limit_ms=30, quantile=0.99),)


def test_a_probe_shows_whether_its_own_quantile_is_within_the_limit() -> None:
    seen = evaluate_probe(probe_of(constant_log(500, 5, 0.01)), 500, P99)
    assert seen.met
    assert not evaluate_probe(probe_of(constant_log(500, 5, 0.031)), 500, P99).met
    assert seen.median_ms == pytest.approx(10)
    assert seen.answered_per_s == pytest.approx(500, rel=0.01)
    assert seen.load_s == pytest.approx(5, abs=0.05)
    assert not seen.overloaded


@pytest.mark.parametrize("overloaded", [True, False])
def test_overloaded_is_what_the_generator_says_or_most_requests_show(overloaded: bool) -> None:
    latency_s = 0.01 if overloaded else 0.1
    seen = evaluate_probe(probe_of(constant_log(500, 5, latency_s), overloaded=overloaded), 500, P99)
    assert seen.overloaded
    assert not seen.met
