"""The cheapest mix against every other one: all replica counts, tried by force."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.cost.fleet_mix import MOST_REPLICAS, Option, RateTooHigh, cheapest_mix

OPTIONS = st.lists(
    st.builds(
        Option,
        name=st.just("machine"),
        rate_per_s=st.floats(5, 500),
        usd_per_hour=st.floats(0.05, 20),
        at_most=st.none() | st.integers(0, 4),
    ),
    min_size=1,
    max_size=3,
)


def by_force(options: list[Option], rate_per_s: float) -> float:
    """The lowest price of all mixes that serve the rate; infinite where none does."""
    ranges = []
    for option in options:
        enough = math.ceil(rate_per_s / option.rate_per_s)
        ranges.append(range(min(enough, enough if option.at_most is None else option.at_most) + 1))
    return min(
        (
            sum(option.usd_per_hour * count for option, count in zip(options, counts, strict=True))
            for counts in itertools.product(*ranges)
            if sum(o.rate_per_s * count for o, count in zip(options, counts, strict=True))
            >= rate_per_s * (1 - 1e-9)
        ),
        default=math.inf,
    )


@given(options=OPTIONS, share=st.floats(0.1, 25))
def test_no_mix_is_cheaper(options: list[Option], share: float) -> None:
    rate_per_s = share * min(option.rate_per_s for option in options)
    expected = by_force(options, rate_per_s)
    if math.isinf(expected):
        with pytest.raises(RateTooHigh):
            cheapest_mix(options, rate_per_s)
        return
    mix = cheapest_mix(options, rate_per_s)
    assert math.isclose(mix.usd_per_hour, expected, rel_tol=1e-9)
    assert mix.rate_per_s >= rate_per_s * (1 - 1e-8)
    assert all(
        option.at_most is None or n <= option.at_most for option, n in zip(options, mix.counts, strict=True)
    )


@given(options=OPTIONS, rate=st.floats(1, 100))
def test_offering_one_more_machine_never_costs_more(options: list[Option], rate: float) -> None:
    free = [Option(name="free", rate_per_s=o.rate_per_s, usd_per_hour=o.usd_per_hour) for o in options]
    alone = min(cheapest_mix([option], rate).usd_per_hour for option in free)
    assert cheapest_mix(free, rate).usd_per_hour <= alone * (1 + 1e-9)


def test_machines_of_one_price_per_request_are_all_considered() -> None:
    # Nothing tells these apart by price per request, so no branch is cut early; only the exact fit is cheapest.
    options = [Option(name=str(rate), rate_per_s=rate, usd_per_hour=rate / 100) for rate in (7.0, 11.0, 13.0)]
    mix = cheapest_mix(options, 1001.0)
    assert mix.rate_per_s == pytest.approx(1001.0)


def test_runs_on_machines_of_one_price_do_not_multiply() -> None:
    # Without dropping the dominated ones, a million mixes of these would have to be looked at for each answer.
    options = [
        Option(name=str(rate), rate_per_s=rate, usd_per_hour=0.132) for rate in (928.0, 931.0, 929.0, 930.0)
    ]
    for rate in range(90_000, 100_000, 500):
        assert cheapest_mix(options, float(rate)).counts == (0, math.ceil(rate / 931), 0, 0)


def test_a_rate_that_all_replicas_together_do_not_serve() -> None:
    few = [Option(name="a", rate_per_s=100.0, usd_per_hour=1.0, at_most=3)]
    assert cheapest_mix(few, 300.0).counts == (3,)
    with pytest.raises(RateTooHigh) as caught:
        cheapest_mix(few, 301.0)
    assert caught.value.most_per_s == 300.0
    with pytest.raises(RateTooHigh):
        cheapest_mix([Option(name="a", rate_per_s=1.0, usd_per_hour=1.0)], MOST_REPLICAS + 1.0)


def test_no_traffic_needs_no_machine() -> None:
    assert cheapest_mix([Option(name="a", rate_per_s=1.0, usd_per_hour=1.0)], 0.0).counts == (0,)


@pytest.mark.parametrize(("rate", "usd"), [(0.0, 1.0), (1.0, 0.0), (math.nan, 1.0), (1.0, math.inf)])
def test_an_offer_that_is_none(rate: float, usd: float) -> None:
    with pytest.raises(ValueError, match="no offer"):
        Option(name="a", rate_per_s=rate, usd_per_hour=usd)
