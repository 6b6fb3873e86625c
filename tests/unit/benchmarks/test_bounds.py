import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

from lib.bounds import lower_bound


def test_the_bound_against_tables() -> None:
    # n of n: the bound is alpha ** (1 / n). 9 of 10: 0.6058 (Clopper & Pearson, one-sided 95 %).
    assert lower_bound(256, 256, confidence=0.95) == pytest.approx(0.05 ** (1 / 256), abs=1e-6)
    assert lower_bound(9, 10, confidence=0.95) == pytest.approx(0.6058, abs=1e-4)
    assert lower_bound(0, 10, confidence=0.95) == 0


@given(st.integers(1, 300), st.data())
def test_the_bound_is_below_the_share(trials: int, data: Any) -> None:
    successes = data.draw(st.integers(0, trials))
    assert lower_bound(successes, trials, confidence=0.95) <= successes / trials
