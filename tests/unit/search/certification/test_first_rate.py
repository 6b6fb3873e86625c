"""The share of the estimate at which a first confirmation begins, and the least time of a confirmation."""

import pytest
from recommendations import trial

from loadgen.spec.limits import LatencyLimit
from loadgen.statistics.confirm import shortest_s
from loadgen.statistics.slo_test import confidence_of_each
from search.certification.first_rate import CLOSEST_SHARE, KNEE_SHARE, LAST_RESORT_SHARE, first_share
from search.records.slo import Slo
from search.trials.certificate_time import least_s

SLO = Slo(limits=(LatencyLimit(limit_ms=50.0),))
ALSO = LatencyLimit(quantile=0.999, limit_ms=80.0)


def share(rate_per_s: float | None, budget_s: float, slo: Slo = SLO) -> float:
    return first_share(trial(rate_at_limit_per_s=rate_per_s), slo, budget_s)


def test_the_more_requests_the_closer_to_the_estimate_is_the_first_rate() -> None:
    shares = [share(rate_per_s, 20.0) for rate_per_s in (5.0, 50.0, 200.0, 500.0, 2000.0, 1e6)]
    assert shares == sorted(shares)
    assert LAST_RESORT_SHARE == shares[0] < share(200.0, 20.0) < shares[-1] == KNEE_SHARE < 1.0
    assert share(1000.0, 10.0) == pytest.approx(share(500.0, 20.0)), "only their number counts"
    assert share(None, 60.0) == LAST_RESORT_SHARE, "there is no estimate"


def of_limit(limit_ms: float) -> float:
    return share(5000.0, 60.0, Slo(limits=(LatencyLimit(limit_ms=limit_ms),)))


def test_short_confirmations_begin_closer_to_the_estimate() -> None:
    """Their seconds are in proportion to the limit, so closeness costs little under a tight one."""
    shares = [of_limit(limit_ms) for limit_ms in (50.0, 12.0, 9.0, 7.0, 2.0)]
    assert shares == sorted(shares)
    assert KNEE_SHARE == shares[0] < of_limit(7.0) <= shares[-1] == CLOSEST_SHARE < 1.0


def test_the_strictest_of_several_limits_decides() -> None:
    both = Slo(limits=(LatencyLimit(limit_ms=50.0), ALSO))
    assert share(5000.0, 20.0, both) == pytest.approx(share(500.0, 20.0))  # ten times as many requests


def test_the_least_time_is_that_of_the_limit_that_takes_longest() -> None:
    both = Slo(limits=(LatencyLimit(limit_ms=50.0), ALSO))
    each = confidence_of_each(0.95, 2)
    alone = [least_s(100.0, Slo(limits=(limit,)), each) for limit in both.limits]
    assert least_s(100.0, both, 0.95) == max(alone) > min(alone)
    assert min(alone) > shortest_s(both.limits[0], 100.0, each), "a warm-up comes on top"
