import math

import pytest
from recommendations import trial

from loadgen.spec.limits import LatencyLimit
from loadgen.statistics.confirm import FIRST_SHARE, shortest_s
from search.certification.first_rate import CLOSEST_SHARE, GROWTH, KNEE_SHARE, LAST_RESORT_SHARE, first_share
from search.records.slo import Slo
from search.trials.certificate_time import BAD_LUCK, least_s

SLO = Slo(limits=(LatencyLimit(limit_ms=50.0),))
ALSO = LatencyLimit(quantile=0.999, limit_ms=80.0)


def share(rate_per_s: float | None, budget_s: float, slo: Slo = SLO) -> float:
    return first_share(trial(rate_at_limit_per_s=rate_per_s), slo, budget_s)


def test_the_first_rate_is_two_errors_of_what_the_requests_can_tell_below_the_estimate() -> None:
    """At a VIF of 50 and an elasticity of 20, 10,000 requests tell the rate at a p99 to 3.5 %."""
    error = math.sqrt(50 / (0.01 * 10_000)) / 20
    assert share(500.0, 20.0) == pytest.approx(FIRST_SHARE - 2 * error)
    assert share(1000.0, 10.0) == pytest.approx(share(500.0, 20.0))


def test_many_requests_do_not_lead_beyond_the_knee_nor_few_below_the_last_resort() -> None:
    assert share(1e6, 60.0) == KNEE_SHARE
    assert share(10.0, 1.0) == share(None, 60.0) == LAST_RESORT_SHARE
    assert LAST_RESORT_SHARE < share(500.0, 8.0) < share(500.0, 20.0) < KNEE_SHARE


def of_limit(limit_ms: float) -> float:
    return share(5000.0, 60.0, Slo(limits=(LatencyLimit(limit_ms=limit_ms),)))


def test_short_confirmations_begin_closer_to_the_estimate() -> None:
    """Their seconds are in proportion to the limit, so closeness costs little under a tight one."""
    assert of_limit(50.0) == KNEE_SHARE < of_limit(12.0) < of_limit(9.0) < of_limit(4.0) == CLOSEST_SHARE
    assert of_limit(9.0) - of_limit(12.0) == pytest.approx(math.log(12 / 9) / GROWTH, rel=0.01)


def test_the_strictest_of_several_limits_decides() -> None:
    both = Slo(limits=(LatencyLimit(limit_ms=50.0), ALSO))
    assert share(5000.0, 20.0, both) == pytest.approx(share(500.0, 20.0))  # ten times as many requests


def test_the_least_time_is_that_of_the_limit_that_takes_longest_its_warm_up_included() -> None:
    assert least_s(100.0, SLO, 0.95) == pytest.approx(BAD_LUCK * shortest_s(SLO.limits[0], 100.0, 0.95) + 0.15)
    both = Slo(limits=(LatencyLimit(limit_ms=50.0), ALSO))
    first, second = both.limits
    of_first, of_second = (
        BAD_LUCK * shortest_s(limit, 100.0, 0.975) + warm_up_s
        for limit, warm_up_s in ((first, 0.15), (second, 0.24))
    )
    assert of_first < of_second
    assert least_s(100.0, both, 0.95) == pytest.approx(of_second)
