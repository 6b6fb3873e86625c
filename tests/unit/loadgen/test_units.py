import pytest

from loadgen.units import duration_ms
from loadgen.user_errors import BadInput


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [("50ms", 50), ("0.2s", 200), ("1.5 s", 1500), ("250us", 0.25), ("10m", 600_000), ("1e2ms", 100), ("+5ms", 5)],
)
def test_durations_are_read_with_their_unit(text: str, expected_ms: float) -> None:
    assert duration_ms(text, option="--p99", default_unit="ms") == (pytest.approx(expected_ms), False)


def test_a_missing_unit_is_assumed_and_said() -> None:
    assert duration_ms("50", option="--p99", default_unit="ms") == (50, True)


@pytest.mark.parametrize("text", ["0", "-5ms", "50 parsecs", "fast", "", "nan", "inf", "1e999ms", "ms", "5 m s"])
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadInput) as caught:
        duration_ms(text, option="--p99", default_unit="ms")
    assert "--p99" in caught.value.what
    assert "--p99 50ms" in caught.value.fix
