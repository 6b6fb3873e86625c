"""The laws that load generators are compared with."""

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

from lib.judges.laws import LAWS, discrete_sojourn_ms, exponential_sojourn_ms, sampled_ms


@pytest.mark.parametrize("rate_per_s", [150.0, 400.0])
@pytest.mark.parametrize("quantile", [0.5, 0.99])
def test_the_law_of_general_service_is_the_closed_form_of_exponential_service(
    rate_per_s: float, quantile: float
) -> None:
    edges_ms = np.arange(0.0, 30.0, 0.2)  # the exponential law of 2 ms, in cells
    times_ms, shares = edges_ms[:-1] + 0.1, -np.diff(np.exp(-edges_ms / 2.0))
    general = discrete_sojourn_ms(times_ms, shares, rate_per_s, quantile, step_ms=0.05)
    assert general == pytest.approx(exponential_sojourn_ms(2.0, rate_per_s, quantile), rel=0.01, abs=0.1)


def test_the_law_of_general_service_is_erlangs_for_equal_service_times() -> None:
    """M/D/1: P(wait <= t) = (1 - rho) exp(lambda t) for t up to one service time."""
    expected_ms = 2.0 + math.log(0.85 / (1 - 0.3)) / 0.15
    assert discrete_sojourn_ms(np.array([2.0]), np.array([1.0]), 150.0, 0.85) == pytest.approx(
        expected_ms, abs=0.02
    )


def test_no_law_is_known_above_the_capacity() -> None:
    with pytest.raises(ValueError, match=r"1\.20 of the capacity"):
        discrete_sojourn_ms(np.array([2.0]), np.array([1.0]), 600.0, 0.5)


@pytest.mark.parametrize("law", LAWS.values(), ids=lambda law: law.name)
def test_long_samples_of_each_law_have_its_quantiles(law: Any) -> None:
    runs = sampled_ms(law, 300.0, 30_000, runs=20, seed=3)
    exact = [law.latency_ms(300.0, quantile) for quantile in (0.5, 0.99)]
    errors = np.std(runs, axis=1, ddof=1) / math.sqrt(20)
    assert (np.abs(runs.mean(axis=1) - exact) <= 4 * errors + 0.02).all()
