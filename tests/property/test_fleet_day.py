"""A day's plan against every other one: all numbers of committed replicas, all mixes by the hour."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.cost.fleet_day import TooManyPlans, cheapest_day, held_day
from search.cost.fleet_mix import Option

RATES = st.lists(st.sampled_from([0.0, 10.0, 25.0, 40.0, 90.0]), min_size=1, max_size=4).filter(any).map(tuple)


@st.composite
def offers(draw: st.DrawFn) -> list[Option]:
    """One or two machines by the hour, and perhaps the first one committed, which is cheaper."""
    machines = [
        Option(name=name, rate_per_s=draw(st.floats(12, 60)), usd_per_hour=draw(st.floats(0.5, 3)))
        for name in "ab"[: draw(st.integers(1, 2))]
    ]
    if draw(st.booleans()):
        first = machines[0]
        share = draw(st.floats(0.3, 0.95))
        kept = Option(
            name="a", rate_per_s=first.rate_per_s, usd_per_hour=first.usd_per_hour * share, committed=True
        )
        machines.append(kept)
    return machines


def by_force(options: list[Option], rates: tuple[float, ...]) -> float:
    """The lowest bill of all plans: committed counts hold all day, the others are chosen anew each hour."""
    ranges = [range(math.ceil(max(rates) / option.rate_per_s) + 1) for option in options]
    fixed = [index for index, option in enumerate(options) if option.committed]
    mixes = list(itertools.product(*ranges))

    def hour_usd(rate: float, kept: tuple[int, ...]) -> float:
        return min(
            sum(option.usd_per_hour * n for option, n in zip(options, counts, strict=True))
            for counts in mixes
            if tuple(counts[index] for index in fixed) == kept
            and sum(o.rate_per_s * n for o, n in zip(options, counts, strict=True)) >= rate * (1 - 1e-9)
        )

    return min(
        sum(hour_usd(rate, kept) for rate in rates)
        for kept in itertools.product(*(ranges[index] for index in fixed))
    )


@given(options=offers(), rates=RATES)
def test_no_plan_is_cheaper(options: list[Option], rates: tuple[float, ...]) -> None:
    plan = cheapest_day(options, rates)
    assert math.isclose(plan.usd_per_day, by_force(options, rates), rel_tol=1e-9)
    assert all(mix.rate_per_s >= rate * (1 - 1e-8) for mix, rate in zip(plan.hours, rates, strict=True))
    kept = {tuple(n for n, o in zip(mix.counts, options, strict=True) if o.committed) for mix in plan.hours}
    assert len(kept) == 1
    assert plan.usd_per_day <= held_day(options, rates).usd_per_day * (1 + 1e-9)


def test_the_valley_is_committed_and_the_peak_is_bought_by_the_hour() -> None:
    hourly = Option(name="a", rate_per_s=10.0, usd_per_hour=1.0)
    kept = Option(name="a", rate_per_s=10.0, usd_per_hour=0.6, committed=True)
    plan = cheapest_day([hourly, kept], (20.0,) * 12 + (50.0,) * 12)
    # Two are busy all day. A third would be idle for half of it: 0.6 all day is more than 1.0 for half.
    assert plan.most == (3, 2)
    assert math.isclose(plan.usd_per_day, 24 * 2 * 0.6 + 12 * 3 * 1.0)


def test_more_commitments_than_can_be_looked_at_are_refused() -> None:
    small = [Option(name=name, rate_per_s=1.0, usd_per_hour=1.0, committed=True) for name in "ab"]
    with pytest.raises(TooManyPlans, match="25,010,001"):
        cheapest_day(small, (5000.0,))


def test_machines_of_one_run_share_their_limit() -> None:
    hourly = Option(name="a", rate_per_s=10.0, usd_per_hour=1.0, at_most=3)
    kept = Option(name="a", rate_per_s=10.0, usd_per_hour=0.6, committed=True, at_most=3)
    other = Option(name="b", rate_per_s=10.0, usd_per_hour=5.0)
    plan = cheapest_day([hourly, kept, other], (10.0,) * 20 + (40.0,) * 4)
    assert sum(plan.most[:2]) == 3
    assert held_day([hourly, kept, other], (10.0,) * 20 + (40.0,) * 4).most == (0, 3, 1)
    assert plan.most[2] == 1
