"""The autoscaler's target against a simulated autoscaler that knows nothing of the formula."""

import math
from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.scaling import Traffic, scaling_for

WINDOW_S, SCRAPE_S, SYNC_S, TOLERANCE = 60, 15, 15, 0.1
CERTIFIED = 1000.0


def worst_load(traffic: Traffic, *, target: float, replicas: int, most: int, start_s: Any) -> float:
    """The highest rate per ready replica while the traffic grows, second by second.

    Prometheus scrapes a counter, the query takes its mean rate over the last window of samples, the autoscaler
    compares it with the target and asks for ceil(rate / target) replicas, which are ready `start_s` later.
    """
    counter, samples = 0.0, deque()  # type: ignore[var-annotated]
    pending: deque[tuple[float, int]] = deque()
    ready = asked = replicas
    worst = 0.0
    for second in range(-600, int(traffic.ramp_s) + 600):
        grown = min(max(second, 0), traffic.ramp_s) * traffic.growth_per_s2
        rate = traffic.rate_per_s + grown
        counter += rate
        while pending and pending[0][0] <= second:
            ready = pending.popleft()[1]
        worst = max(worst, rate / ready)
        if second % SCRAPE_S == 0:
            samples.append((second, counter))
            while samples[0][0] < second - WINDOW_S:
                samples.popleft()
        if second % SYNC_S == SYNC_S - 1 and len(samples) > 1:
            (first, before), (last, after) = samples[0], samples[-1]
            seen = (after - before) / (last - first)
            if seen / (asked * target) > 1 + TOLERANCE:
                asked = min(most, math.ceil(seen / target))
                pending.append((second + start_s, asked))
    return worst


def outcome(traffic: Traffic, start_s: float, *, target: float | None = None) -> float:
    scaling = scaling_for(traffic, certified_rate_per_s=CERTIFIED, start_s=start_s, max_replicas=10**6)
    return worst_load(
        traffic,
        target=target or scaling.target_rate_per_s,
        replicas=max(1, math.ceil(traffic.rate_per_s / (target or scaling.target_rate_per_s))),
        most=scaling.max_replicas,
        start_s=start_s,
    )


@given(
    rate=st.floats(1000, 20_000),
    growth=st.floats(1.0, 4.0),
    ramp_s=st.floats(200, 2000),
    start_s=st.floats(1, 200),
)
def test_no_replica_ever_gets_more_than_its_certified_rate(
    rate: float, growth: float, ramp_s: float, start_s: float
) -> None:
    traffic = Traffic(rate_per_s=rate, peak_rate_per_s=growth * rate, ramp_s=ramp_s)
    assert outcome(traffic, start_s) <= CERTIFIED * (1 + 1e-6)


def test_without_the_headroom_they_do() -> None:
    traffic = Traffic(rate_per_s=8000, peak_rate_per_s=24_000, ramp_s=600)
    assert outcome(traffic, 60, target=CERTIFIED) > 1.1 * CERTIFIED


@pytest.mark.parametrize("start_s", [5, 60])
def test_the_headroom_is_not_wasted(start_s: int) -> None:
    traffic = Traffic(rate_per_s=20_000, peak_rate_per_s=60_000, ramp_s=600)
    assert outcome(traffic, start_s) > 0.8 * CERTIFIED
