import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from loadgen.statistics.sequential import (
    fewest_violations,
    log_evidence_above,
    log_evidence_below,
    most_violations,
    requests_needed,
    share_at_least,
    share_at_most,
)


def test_where_every_request_is_late_the_share_is_one_at_the_most() -> None:
    assert share_at_most(50, 50, 1.0, 0.95) == 1.0


def expected(evidence: Callable[[float, float, float, float], float], *, bursts: float, burst: float) -> float:
    """The mean of the evidence over all numbers of violations, by quadrature, when `bursts` are expected.

    The violations are a sum of a Poisson number of exponential bursts: none with probability exp(-bursts), else
    gamma distributed, by the number of bursts (x in bursts).
    """
    share, n = 0.01, bursts * burst / 0.01
    edges = np.geomspace(1e-9, 40 * (1 + bursts), 3_001)
    x, width = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
    density = sum(
        np.exp(k * math.log(bursts) - bursts - math.lgamma(k + 1) + (k - 1) * np.log(x) - x - math.lgamma(k))
        for k in range(1, 400)
    )
    values = np.exp([evidence(k * burst, n, share, burst) for k in (0.0, *x)])
    return float(math.exp(-bursts) * values[0] + (density * width) @ values[1:])


@pytest.mark.parametrize("evidence", [log_evidence_below, log_evidence_above])
@pytest.mark.parametrize("bursts", [0.1, 1.0, 8.0, 30.0])
def test_evidence_against_the_truth_is_exactly_one_on_average(
    evidence: Callable[[float, float, float, float], float], bursts: float
) -> None:
    assert expected(evidence, bursts=bursts, burst=20.0) == pytest.approx(1.0, abs=2e-3)


@pytest.mark.parametrize("burst", [1.0, 20.0])
def test_without_violations_hardly_more_requests_are_needed_than_for_one_look(burst: float) -> None:
    """The evidence of none is exp(bursts), and no more than the number of the mixture's parts is lost of it."""
    assert requests_needed(0, 0.01, burst, 0.95) <= 100 * burst * math.log(20 * 6) + 1


@pytest.mark.parametrize("n", [200, 500, 5000, 100_000])
@pytest.mark.parametrize("burst", [1.0, 7.5, 200.0])
def test_counts_and_bounds_say_the_same(n: int, burst: float) -> None:
    most, fewest = most_violations(n, 0.01, burst, 0.95), fewest_violations(n, 0.01, burst, 0.95)
    assert most < 0.01 * n < fewest
    if most >= 0:
        assert share_at_most(most, n, burst, 0.95) <= 0.01
    assert share_at_most(most + 1, n, burst, 0.95) > 0.01
    assert (fewest > n) is (log_evidence_above(n, n, 0.01, burst) < math.log(20))
    if fewest > n:
        assert fewest == n + 1
    else:
        assert share_at_least(fewest, n, burst, 0.95) >= 0.01
        assert share_at_least(fewest - 1, n, burst, 0.95) < 0.01


@pytest.mark.parametrize("violations", [0, 1, 30])
@pytest.mark.parametrize("burst", [1.0, 50.0])
def test_requests_needed_are_just_enough(violations: int, burst: float) -> None:
    n = requests_needed(violations, 0.01, burst, 0.95)
    assert n >= 299  # of the exact binomial, without any violation
    assert most_violations(n, 0.01, burst, 0.95) >= violations
    assert most_violations(n - 1, 0.01, burst, 0.95) < violations


def test_larger_bursts_say_less() -> None:
    uppers = [share_at_most(20, 10_000, burst, 0.95) for burst in (1, 2, 5, 20, 100)]
    lowers = [share_at_least(200, 10_000, burst, 0.95) for burst in (1, 2, 5, 20, 100)]
    assert all(np.diff(uppers) > 0)
    assert all(np.diff(lowers) < 0)


@pytest.mark.parametrize(
    ("evidence", "times", "least"),
    [
        (log_evidence_below, np.linspace(0.005, 0.85, 60), 0.78),
        (log_evidence_above, np.linspace(1.06, 4, 60), 0.84),
    ],
)
def test_hardly_more_requests_are_needed_than_by_whoever_knows_the_true_share(
    evidence: Callable[[float, float, float, float], float], times: NDArray[Any], least: float
) -> None:
    """With the g that suits it best, evidence grows by (1 - sqrt(r))^2 with each burst that is allowed, where r is
    the true share as a multiple of what is allowed."""
    allowed = 1e5  # bursts
    for r in times:
        assert evidence(r * allowed, allowed / 0.01, 0.01, 1.0) > least * allowed * (1 - math.sqrt(r)) ** 2


@pytest.mark.parametrize("burst", [1.0, 7.5, 20.0])
def test_in_the_shortest_run_that_can_be_violated_all_have_to_be_violations(burst: float) -> None:
    n = next(n for n in itertools.count(1) if fewest_violations(n, 0.01, burst, 0.95) <= n)
    assert fewest_violations(n, 0.01, burst, 0.95) == n
