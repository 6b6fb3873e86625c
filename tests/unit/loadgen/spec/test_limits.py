import math
from typing import Any

import pytest

from loadgen.spec.limits import LatencyLimit


@pytest.mark.parametrize(
    "wrong", [{"limit_ms": 0}, {"limit_ms": math.nan}, {"limit_ms": math.inf}, {"quantile": 0}, {"quantile": 1}]
)
def test_impossible_limits_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        LatencyLimit(**{"limit_ms": 30, **wrong})


def test_a_limit_in_other_units_and_words() -> None:
    limit = LatencyLimit(limit_ms=30, quantile=0.999)
    assert (limit.limit_ns, limit.limit_s) == (30_000_000, 0.03)
    assert limit.allowed == pytest.approx(0.001)
    assert (limit.name, limit.option, limit.text) == ("p99.9", "--p999=30ms", "p99.9 <= 30 ms")
