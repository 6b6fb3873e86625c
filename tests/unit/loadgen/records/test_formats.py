"""Figures as text: enough digits, the same everywhere."""

import pytest

from loadgen.records.formats import UNKNOWN, format_dollars, format_ms, format_rate


@pytest.mark.parametrize(
    ("amount", "text"),
    [(1234.5, "$1,234.50"), (4.5, "$4.50"), (0.139, "$0.139"), (0.01234, "$0.0123"), (0.000567, "$0.000567")],
)
def test_small_amounts_keep_three_digits(amount: float, text: str) -> None:
    assert format_dollars(amount) == text


@pytest.mark.parametrize(
    ("rate_per_s", "text"),
    [
        (12345.6, "12,345"),
        (999.96, "999.9"),
        (432.0, "432"),
        (199.87, "199.8"),
        (18.66, "18.66"),
        (8.2, "8.2"),
        (0.3, "0.3"),
        (0.1234, "0.1234"),
        (0.0, "0"),
    ],
)
def test_rates_have_four_digits_and_are_never_rounded_up(rate_per_s: float, text: str) -> None:
    assert format_rate(rate_per_s) == text


@pytest.mark.parametrize(
    ("ms", "text"), [(1234.5, "1,234"), (30.0, "30.0"), (7.5, "7.50"), (0.31, "0.31"), (0.012, "0.012")]
)
def test_latencies_have_three_digits(ms: float, text: str) -> None:
    assert format_ms(ms) == text


def test_an_unknown_figure_is_a_dash() -> None:
    assert format_dollars(None) == format_rate(None) == format_ms(float("nan")) == UNKNOWN
