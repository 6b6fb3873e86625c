from typing import Any

import pytest

from deploy.scaling import Scaling, Traffic, scaling_for, start_of, traffic_from
from loadgen.errors import BadInput


def traffic(rate: float = 2000.0, peak: float = 4000.0, ramp_s: float = 600.0) -> Traffic:
    return Traffic(rate_per_s=rate, peak_rate_per_s=peak, ramp_s=ramp_s)


def scaling(**changes: Any) -> Scaling:
    given: dict[str, Any] = {"certified_rate_per_s": 1000.0, "start_s": 10.0}
    return scaling_for(changes.pop("traffic", traffic()), **{**given, **changes})


def test_the_target_by_hand() -> None:
    # Half of 60 s, 15 s and 15 s, and 10 s of start: 70 s, in which 2000/s grow by 70 x 2000/600 = 233.3/s.
    found = scaling()
    assert found.reaction_s == 70
    assert found.target_rate_per_s == pytest.approx(1000 / (1.1 * (1 + 233.333333 / 2000)))
    assert found.headroom == pytest.approx(1 - found.target_rate_per_s / 1000)


def test_replicas_by_hand() -> None:
    # 814.1/s each: 2000/s need 3, and one more than 2000/1000 is 3 as well; 4000/s need 5, one more than 4 is 5.
    assert (scaling().min_replicas, scaling().max_replicas) == (3, 5)


def test_a_slower_start_needs_more_room() -> None:
    assert scaling(start_s=300.0).target_rate_per_s < scaling().target_rate_per_s


def test_even_the_lightest_traffic_survives_the_loss_of_a_replica() -> None:
    assert scaling(traffic=traffic(rate=1.0, peak=1.0)).min_replicas == 2


def test_what_nobody_measured_is_marked() -> None:
    assert start_of(None, 3.0) == (3.0, "measured")
    assert start_of(9.0, 3.0) == (9.0, "given")
    assert start_of(None, None)[1] == "assumed"


def test_more_than_the_fleet_is_refused() -> None:
    with pytest.raises(BadInput) as refused:
        scaling(max_replicas=4)
    assert "5 replicas" in refused.value.what
    assert "--max-replicas" in refused.value.fix


def test_a_peak_below_the_rate_is_refused() -> None:
    with pytest.raises(BadInput, match="below the rate"):
        traffic(rate=10.0, peak=5.0)


def test_what_nobody_said_is_assumed_and_said() -> None:
    assumed = traffic_from(certified_rate_per_s=500.0, rate_per_s=None, peak_rate_per_s=None)
    assert (assumed.rate_per_s, assumed.peak_rate_per_s, assumed.ramp_s) == (500.0, 1000.0, 600.0)
    assert len(assumed.assumed) == 3
    told = traffic_from(certified_rate_per_s=500.0, rate_per_s=10.0, peak_rate_per_s=20.0, ramp_s=60.0)
    assert told.assumed == ()


def test_a_peak_alone_may_be_below_one_replica() -> None:
    assumed = traffic_from(certified_rate_per_s=500.0, rate_per_s=None, peak_rate_per_s=100.0)
    assert assumed.rate_per_s == assumed.peak_rate_per_s == 100.0
