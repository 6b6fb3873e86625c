import math
from typing import Any

import numpy as np
import pytest

from optimizer.accuracy.metrics import Closeness, closeness


def compare(reference: list[Any], actual: list[Any], *, classes: bool = False) -> Closeness:
    return closeness([np.array(reference, np.float32)], [np.array(actual, np.float32)], classes=classes)


def test_equal_results() -> None:
    seen = compare([[1, 2]], [[1, 2]])
    assert (seen.sqnr_db, seen.cosine, seen.max_relative_error, seen.non_finite) == (math.inf, 1.0, 0.0, 0)
    assert seen.top1_agreement is None


def test_figures_by_hand() -> None:
    # r = (3, 4), r - y = (0.3, 0): 10 log10(25 / 0.09); cosine 24.1 / (5 sqrt(2.7^2 + 16)); 0.3 / (3 + 0.01 rms)
    seen = compare([[3, 4]], [[2.7, 4]])
    assert seen.sqnr_db == pytest.approx(24.437, abs=1e-3)
    assert seen.cosine == pytest.approx(24.1 / (5 * math.sqrt(2.7**2 + 16)), abs=1e-6)
    assert seen.max_relative_error == pytest.approx(0.3 / (3 + 0.01 * math.sqrt(12.5)), rel=1e-5)


def test_sums_run_over_all_samples() -> None:
    parts = closeness(
        [np.array([[3]], np.float32), np.array([[4]], np.float32)],
        [np.array([[2.7]], np.float32), np.array([[4]], np.float32)],
        classes=False,
    )
    assert parts.sqnr_db == pytest.approx(compare([[3, 4]], [[2.7, 4]]).sqnr_db)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_counted(bad: float) -> None:
    assert compare([[1, 2]], [[1, bad]]).non_finite == 1
    assert compare([[1, bad]], [[1, bad]]).non_finite == 1
    assert compare([[1, 2]], [[1, bad]], classes=True).top1_agreement == 0


def test_another_shape_is_missing() -> None:
    assert closeness([np.zeros((1, 3))], [np.zeros((1, 2))], classes=True).non_finite == 3


def test_silence_and_noise() -> None:
    assert compare([[0, 0]], [[0, 0]]).cosine == 1
    assert compare([[0, 0]], [[0, 0.1]]).sqnr_db == -math.inf


def test_the_best_class() -> None:
    reference = [[0.1, 0.9], [0.6, 0.4]]
    assert compare(reference, [[0.2, 0.8], [0.4, 0.6]], classes=True).top1_agreement == 0.5
    assert compare(reference, [[0.2, 0.8], [0.7, 0.3]], classes=True).top1_agreement == 1


def test_ties_agree() -> None:
    assert compare([[0.5, 0.4996]], [[0.4, 0.6]], classes=True).top1_agreement == 1
    assert compare([[0.5, 0.499]], [[0.4, 0.6]], classes=True).top1_agreement == 0


def test_integers_are_equal_or_not() -> None:
    seen = closeness([np.array([1, 2, 3, 4], np.int64)], [np.array([1, 2, 3, 5], np.int64)], classes=False)
    assert (seen.top1_agreement, seen.sqnr_db, seen.cosine) == (0.75, None, None)
