import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from loadgen.statistics.capacity_fit import HeadroomEstimate, fit_capacity


def reading(rate: float, headroom: float, error: float = 0.05) -> HeadroomEstimate:
    return HeadroomEstimate(rate_per_s=rate, headroom=headroom, error=error)


def on_a_line(
    rates: list[Any] | NDArray[Any], *, knee: float, slope: float, error: float = 0.02
) -> list[HeadroomEstimate]:
    return [reading(rate, 1 - slope * math.log(rate / knee), error) for rate in rates]


@pytest.mark.parametrize("slope", [2, 10, 40])
def test_readings_on_a_line_give_its_knee(slope: float) -> None:
    knee = fit_capacity(on_a_line([92, 97, 101, 104], knee=100, slope=slope, error=0.01))
    assert knee.rate_per_s == pytest.approx(100, rel=0.01)
    assert knee.lower_per_s < 100 < knee.upper_per_s


def test_readings_far_away_say_little_about_the_line() -> None:
    near = on_a_line([95, 98, 103], knee=100, slope=10)
    assert fit_capacity([*near, reading(5, 9.0), reading(40, 4.0)]).rate_per_s == pytest.approx(100, rel=0.02)


def test_one_reading_gives_an_answer_with_a_wide_error() -> None:
    one = fit_capacity([reading(100, 1.3)])
    more = fit_capacity([reading(100, 1.3), reading(107, 1.0), reading(114, 0.7)])
    assert one.rate_per_s > 100
    assert one.error > 2 * more.error


def test_errors_shrink_with_readings_and_count_by_their_size() -> None:
    few, many = (fit_capacity(on_a_line(np.linspace(90, 110, n), knee=100, slope=8)) for n in (3, 20))
    assert many.error < few.error
    lucky = reading(100, 1.8, error=1.0)
    assert fit_capacity([*on_a_line([95, 99, 104], knee=100, slope=8), lucky]).rate_per_s < 103


def test_the_knee_is_below_every_overload() -> None:
    knee = fit_capacity([reading(100, 3.0), reading(110, 0.0, 0.0)])
    assert 100 < knee.rate_per_s < 110
    assert knee.upper_per_s > 105


def test_headrooms_that_rise_with_the_rate_are_noise() -> None:
    assert 50 < fit_capacity([reading(90, 0.8, 0.3), reading(100, 1.1, 0.3)]).rate_per_s < 200


def test_met_needs_a_number() -> None:
    assert not reading(100, math.nan).met
    assert reading(100, 1.0).met
    assert not reading(100, 1.04).surely_met
