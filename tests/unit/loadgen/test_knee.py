import math

import numpy as np
import pytest

from loadgen.knee import Knee, Reading, knee_from_readings


def reading(rate: float, headroom: float, error: float = 0.05) -> Reading:
    return Reading(rate_per_s=rate, headroom=headroom, error=error)


def on_a_line(rates, *, knee: float, slope: float, error: float = 0.02) -> list[Reading]:
    return [reading(rate, 1 - slope * math.log(rate / knee), error) for rate in rates]


@pytest.mark.parametrize("slope", [2, 10, 40])
def test_readings_on_a_line_give_its_knee(slope):
    knee = knee_from_readings(on_a_line([92, 97, 101, 104], knee=100, slope=slope, error=0.01))
    assert knee.rate_per_s == pytest.approx(100, rel=0.01)
    assert knee.lower_per_s < 100 < knee.upper_per_s


def test_readings_far_away_say_little_about_the_line():
    near = on_a_line([95, 98, 103], knee=100, slope=10)
    assert knee_from_readings([*near, reading(5, 9.0), reading(40, 4.0)]).rate_per_s == pytest.approx(
        100, rel=0.02
    )


def test_one_reading_gives_an_answer_with_a_wide_error():
    one = knee_from_readings([reading(100, 1.3)])
    more = knee_from_readings([reading(100, 1.3), reading(107, 1.0), reading(114, 0.7)])
    assert one.rate_per_s > 100
    assert one.error > 2 * more.error


def test_errors_shrink_with_readings_and_count_by_their_size():
    few, many = (knee_from_readings(on_a_line(np.linspace(90, 110, n), knee=100, slope=8)) for n in (3, 20))
    assert many.error < few.error
    lucky = reading(100, 1.8, error=1.0)
    assert knee_from_readings([*on_a_line([95, 99, 104], knee=100, slope=8), lucky]).rate_per_s < 103


def test_the_knee_is_below_every_overload():
    knee = knee_from_readings([reading(100, 3.0), reading(110, 0.0, 0.0)])
    assert 100 < knee.rate_per_s < 110
    assert knee.upper_per_s > 105


def test_headrooms_that_rise_with_the_rate_are_noise():
    assert 50 < knee_from_readings([reading(90, 0.8, 0.3), reading(100, 1.1, 0.3)]).rate_per_s < 200


def test_kept_needs_a_number():
    assert not reading(100, math.nan).kept
    assert reading(100, 1.0).kept
    assert not reading(100, 1.04).surely_kept


def test_the_error_is_that_of_the_bounds():
    assert Knee.around(100, 0.03).error == pytest.approx(0.03)
