"""Times of more requests than fit in memory: three digits, and nothing flattered."""

import numpy as np
import pytest

from loadgen.histogram import TimesHistogram
from loadgen.measurement import percentiles_ns

QUANTILES = (0.0001, 0.5, 0.9, 0.99, 0.999, 1.0)


@pytest.mark.parametrize("scale_ns", [3e3, 5e6, 4e9])
def test_percentiles_are_the_exact_ones_or_up_to_a_thousandth_more(scale_ns: float) -> None:
    times_ns = np.random.default_rng(1).exponential(scale_ns, 150_000).astype(np.int64)
    histogram = TimesHistogram()
    for part in np.array_split(times_ns, 7):
        histogram.add(part)
    exact = np.array(percentiles_ns(times_ns.copy(), QUANTILES))
    found = np.array(histogram.percentiles_ns(QUANTILES))
    assert (found >= exact).all()
    assert (found <= np.ceil(1.001 * exact)).all()


def test_count_mean_and_extremes_are_exact() -> None:
    times_ns = np.random.default_rng(2).integers(0, 10**10, 5000)
    histogram = TimesHistogram()
    histogram.add(times_ns[:1])
    histogram.add(times_ns[1:])
    assert len(histogram) == 5000
    assert histogram.mean_ns == pytest.approx(times_ns.mean(), rel=1e-12)
    assert (histogram.least_ns, histogram.greatest_ns) == (times_ns.min(), times_ns.max())
    assert histogram.at_rank_ns(1) >= times_ns.min()


def test_times_longer_than_an_hour_are_counted_and_not_lost() -> None:
    histogram = TimesHistogram()
    histogram.add(np.array([10**6, 10**14]))
    assert len(histogram) == 2
    assert histogram.greatest_ns == 10**14
    assert histogram.percentiles_ns([1.0])[0] >= 1 << 42
