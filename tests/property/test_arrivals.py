"""Send times: what holds for every plan, and the distributions that the names promise."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from loadgen.spec.plan import Arrivals, LoadPlan
from loadgen.traffic.arrivals import (
    PIECE,
    _pieces,
    peak_rate_per_s,
    recorded_duration_s,
    recorded_rate_per_s,
    schedule,
)

LEVELS = st.floats(0.0, 4.0)
POSITIVE = st.floats(0.1, 4.0)

ARRIVALS = st.one_of(
    st.builds(Arrivals, kind=st.sampled_from(["poisson", "constant"])),
    st.builds(Arrivals, kind=st.just("gamma"), cv=st.floats(0.1, 5.0)),
    st.builds(Arrivals, kind=st.just("ramp"), levels=st.tuples(LEVELS, POSITIVE)),
    st.builds(Arrivals, kind=st.just("steps"), levels=st.tuples(LEVELS, POSITIVE, LEVELS)),
    st.builds(
        Arrivals, kind=st.just("spike"), levels=st.tuples(POSITIVE), start=st.floats(0, 0.4), end=st.floats(0.5, 1)
    ),
    st.builds(
        lambda gaps: Arrivals(kind="trace", times_s=tuple(np.cumsum(gaps))),
        st.lists(st.floats(0.0, 2.0), min_size=3, max_size=30).filter(lambda gaps: sum(gaps[1:]) > 0.1),
    ),
    st.builds(
        lambda levels, gap: Arrivals(
            kind="rates", levels=tuple(levels), times_s=tuple(gap * i for i in range(len(levels)))
        ),
        st.lists(LEVELS, min_size=2, max_size=6).filter(any),
        st.floats(0.1, 10.0),
    ),
)
PLANS = st.builds(
    LoadPlan,
    rate_per_s=st.floats(0.5, 500),
    duration_s=st.floats(0.1, 10),
    seed=st.integers(0, 2**32),
    arrivals=ARRIVALS,
)


@given(PLANS)
@settings(max_examples=200, deadline=None)
def test_times_ascend_within_the_duration_and_are_the_same_again(plan: LoadPlan) -> None:
    times = schedule(plan)
    assert times.dtype == np.int64
    assert (np.diff(times) >= 0).all()
    assert ((times >= 0) & (times < plan.duration_s * 1e9 + 1)).all()
    assert np.array_equal(times, schedule(plan))


@given(PLANS, st.integers(1, 7))
@settings(max_examples=50, deadline=None)
def test_each_part_has_every_nth_request(plan: LoadPlan, parts: int) -> None:
    times = schedule(plan)
    for part in range(parts):
        assert np.array_equal(schedule(plan, part, parts), times[part::parts])


@pytest.mark.parametrize("kind", ["poisson", "constant", "gamma", "trace"])
def test_a_long_schedule_comes_in_pieces_without_a_seam(kind: Any) -> None:
    rate = 1e5
    arrivals = Arrivals(kind=kind, times_s=(0.0, 1e-5, 2e-5) if kind == "trace" else ())
    pieces = list(_pieces(LoadPlan(rate_per_s=rate, duration_s=8, seed=3, arrivals=arrivals)))
    assert len(pieces) > 2
    assert max(map(len, pieces)) <= PIECE
    assert sum(map(len, pieces)) == pytest.approx(8 * rate, abs=5 * math.sqrt(8 * rate))
    gaps = [later[0] - earlier[-1] for earlier, later in pairwise(pieces) if len(later)]
    assert all(0 <= gap < 20 / rate * 1e9 for gap in gaps)


@given(PLANS.filter(lambda plan: plan.arrivals.kind in ("poisson", "constant", "trace")))
@settings(max_examples=50, deadline=None)
def test_a_longer_duration_does_not_change_the_earlier_times(plan: LoadPlan) -> None:
    longer = schedule(replace(plan, duration_s=plan.duration_s * 2))
    shorter = schedule(plan)
    assert np.allclose(longer[: len(shorter)], shorter, atol=2)


@pytest.mark.parametrize("seed", range(5))
def test_poisson_gaps_are_exponential_and_counts_vary_as_they_should(seed: int) -> None:
    plan = LoadPlan(rate_per_s=1000, duration_s=40, seed=seed)
    times = schedule(plan)
    assert abs(len(times) - 40_000) < 5 * math.sqrt(40_000)
    gaps = np.sort(np.diff(times) / 1e9)
    expected = 1 - np.exp(-1000 * gaps)
    distance = np.abs(expected - np.arange(1, len(gaps) + 1) / len(gaps)).max()
    assert distance < 1.95 / math.sqrt(len(gaps))  # Kolmogorov-Smirnov at 0.1 %
    per_second = np.bincount((times // 1_000_000_000).astype(int), minlength=40)
    assert 0.4 < per_second.var() / per_second.mean() < 2.0


@pytest.mark.parametrize("cv", [0.25, 2.0, 4.0])
def test_gamma_gaps_have_their_variation_and_mean(cv: float) -> None:
    times = schedule(LoadPlan(rate_per_s=2000, duration_s=100, seed=1, arrivals=Arrivals(kind="gamma", cv=cv)))
    gaps = np.diff(times) / 1e9
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)
    assert len(times) / 100 == pytest.approx(2000, rel=5 * cv / math.sqrt(200_000))


def test_constant_times_do_not_drift() -> None:
    times = schedule(LoadPlan(rate_per_s=3000, duration_s=100, seed=0, arrivals=Arrivals(kind="constant")))
    assert len(times) == 300_000
    assert times[-1] == round(299_999 / 3000 * 1e9)


def counts_in(times: NDArray[np.int64], plan: LoadPlan, edges: Any) -> NDArray[Any]:
    return np.histogram(times, bins=np.array(edges) * plan.duration_s * 1e9)[0]


@pytest.mark.parametrize(
    ("arrivals", "edges", "shares"),
    [
        (Arrivals(kind="ramp", levels=(0.0, 2.0)), (0, 0.5, 1), (0.25, 0.75)),
        (Arrivals(kind="steps", levels=(1.0, 0.0, 3.0)), (0, 1 / 3, 2 / 3, 1), (1 / 3, 0.0, 1.0)),
        (Arrivals(kind="spike", levels=(5.0,), start=0.4, end=0.5), (0, 0.4, 0.5, 1), (0.4, 0.5, 0.5)),
        (Arrivals(kind="rates", levels=(10.0, 30.0), times_s=(5.0, 6.0)), (0, 0.5, 1), (0.5, 0.5)),
    ],
    ids=["ramp", "steps", "spike", "rates"],
)
def test_shapes_have_their_share_of_requests_at_every_time(arrivals: Arrivals, edges: Any, shares: Any) -> None:
    plan = LoadPlan(rate_per_s=1000, duration_s=20 if arrivals.kind != "rates" else 4, seed=7, arrivals=arrivals)
    expected = np.array(shares) * plan.rate_per_s * plan.duration_s
    counts = counts_in(schedule(plan), plan, edges)
    assert (np.abs(counts - expected) <= 5 * np.sqrt(expected)).all()


def test_a_trace_at_its_own_rate_is_replayed_as_it_was() -> None:
    recorded = Arrivals(kind="trace", times_s=(100.0, 100.5, 102.0, 103.0))
    rate, duration = recorded_rate_per_s(recorded), recorded_duration_s(recorded)
    assert (rate, duration) == (1.0, 4.0)
    once = schedule(LoadPlan(rate_per_s=rate, duration_s=duration, seed=0, arrivals=recorded))
    assert once.tolist() == [0, 500_000_000, 2_000_000_000, 3_000_000_000]
    twice_as_fast = schedule(LoadPlan(rate_per_s=2.0, duration_s=4.0, seed=0, arrivals=recorded))
    assert twice_as_fast.tolist() == [time // 2 for time in (*once, *(once + 4_000_000_000))]


def test_a_rate_trace_keeps_its_pattern_within_each_turn() -> None:
    recorded = Arrivals(kind="rates", levels=(0.0, 40.0), times_s=(0.0, 1.0))
    plan = LoadPlan(rate_per_s=recorded_rate_per_s(recorded) * 100, duration_s=4.0, seed=1, arrivals=recorded)
    seconds = np.bincount((schedule(plan) // 1_000_000_000).astype(int), minlength=4)
    assert seconds[0] == seconds[2] == 0
    assert seconds[1] + seconds[3] == pytest.approx(8000, abs=5 * math.sqrt(8000))


@pytest.mark.parametrize(
    ("arrivals", "peak"),
    [
        (Arrivals(), 100.0),
        (Arrivals(kind="ramp", levels=(0.5, 2.0)), 200.0),
        (Arrivals(kind="steps", levels=(0.2, 0.1)), 20.0),
        (Arrivals(kind="spike", levels=(4.0,), start=0.1, end=0.2), 400.0),
        (Arrivals(kind="rates", levels=(10.0, 30.0), times_s=(0.0, 1.0)), 150.0),
    ],
    ids=lambda value: value.kind if isinstance(value, Arrivals) else "",
)
def test_the_highest_rate_of_a_plan(arrivals: Arrivals, peak: float) -> None:
    plan = LoadPlan(rate_per_s=100.0, duration_s=10.0, seed=0, arrivals=arrivals)
    assert peak_rate_per_s(plan) == peak


def test_the_highest_rate_of_a_trace_is_that_of_its_busiest_second() -> None:
    recorded = Arrivals(kind="trace", times_s=(0.0, 0.1, 0.2, 0.3, 9.0))
    plan = LoadPlan(rate_per_s=recorded_rate_per_s(recorded), duration_s=10.0, seed=0, arrivals=recorded)
    assert peak_rate_per_s(plan) == 4.0
