"""Times that are made a part at a time have the same figures as all of them at once."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.measurement import chunked_times as module
from loadgen.measurement.chunked_times import Times, sums_between
from loadgen.measurement.request_log import RequestLog, percentiles_ns
from loadgen.spec.limits import LatencyLimit
from loadgen.statistics.slo_test import certify

QUANTILES = (0.0, 0.001, 0.5, 0.9, 0.99, 0.999, 1.0)


def times_of(array: Any, part: int) -> Times:
    return Times(len(array), lambda rows: array[rows].copy(), part=part)


SHAPES = {
    "spread out": lambda draw, n: draw.exponential(3e6, n),
    "few values": lambda draw, n: draw.integers(0, 4, n) * 1e6,
    "one value": lambda draw, n: np.full(n, 7e6),
    "two far apart": lambda draw, n: np.where(draw.random(n) < 0.01, 1e12, 1e6),
    "rising": lambda draw, n: np.arange(n) * 1e3,
    "in turn, as often as a sample is taken": lambda draw, n: (np.arange(n) % 7) * 1e6,
    "failures last": lambda draw, n: np.where(draw.random(n) < 0.02, np.iinfo(np.int64).max, 5e6),
}


@given(
    kind=st.sampled_from(sorted(SHAPES)),
    n=st.integers(1, 20_000),
    part=st.sampled_from([1, 100, 999, 50_000]),
    seed=st.integers(0, 1000),
    cuts=st.lists(st.integers(0, 20_000), max_size=20),
)
@settings(deadline=None, max_examples=60)
def test_the_same_figures(kind: Any, n: int, part: Any, seed: int, cuts: list[Any]) -> None:
    part = max(part, n // 200)
    draw = np.random.default_rng(seed)
    array = np.minimum(SHAPES[kind](draw, n), float(1 << 62)).astype(np.int64)  # type: ignore[no-untyped-call]
    times = times_of(array, part)
    assert times.percentiles_ns(QUANTILES) == percentiles_ns(array.copy(), QUANTILES)
    assert (times.greatest_ns, times.least_ns) == (array.max(), array.min())
    assert times.mean_ns == pytest.approx(array.mean(dtype=np.float64), rel=1e-9)
    assert times.over(3e6) == np.count_nonzero(array > 3e6)
    edges = np.array(sorted(cut % (n + 1) for cut in [0, *cuts, n]), np.intp)
    assert (times.sums_between(edges) == sums_between(array, edges)).all()
    assert times.over_between(3e6, edges).tolist() == [
        np.count_nonzero(array[start:end] > 3e6) for start, end in itertools.pairwise(edges)
    ]
    first, last = int(edges[0]), int(edges[-1])
    assert times.between(first, last).percentiles_ns(QUANTILES[1:-1]) == times.percentiles_ns(QUANTILES[1:-1])


@given(seed=st.integers(0, 1000), slow=st.sampled_from([0.0, 0.005, 0.02]), failing=st.sampled_from([0.0, 0.004]))
@settings(deadline=None, max_examples=30)
def test_a_verdict_does_not_depend_on_how_many_rows_are_taken_at_a_time(
    seed: int, slow: Any, failing: Any
) -> None:
    n, draw = 20_000, np.random.default_rng(seed)
    scheduled = np.sort(draw.integers(0, 10_000_000_000, n))
    latency = draw.exponential(5e6, n) + np.where(draw.random(n) < slow, 40e6, 1e6)
    log = RequestLog(
        scheduled_ns=scheduled,
        sent_ns=scheduled + 1000,
        done_ns=scheduled + latency.astype(np.int64),
        outcome=(draw.random(n) < failing).astype(np.uint8),
    )
    whole = certify(log, LatencyLimit(limit_ms=40))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.Times.__init__, "__kwdefaults__", {"part": 700})
        assert certify(log, LatencyLimit(limit_ms=40)) == whole
