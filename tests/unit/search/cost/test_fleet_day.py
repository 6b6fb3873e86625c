"""A day's traffic in a CSV, as the peaks of its hours."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import BadInput
from search.cost.fleet_day import constant_rate, read_traffic


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "day.csv"
        path.write_text(text)
        return path

    return write


def test_a_rate_holds_until_the_next_line_and_the_last_one_past_midnight(written: Any) -> None:
    rates = read_traffic(written("time,rate_per_s\n06:00,100\n12:00,300\n22:00,20\n"))
    assert rates == (20.0,) * 6 + (100.0,) * 6 + (300.0,) * 10 + (20.0,) * 2


def test_an_hour_has_the_highest_rate_within_it(written: Any) -> None:
    rates = read_traffic(written("00:00,10\n08:30,50\n08:45,20\n09:00,30\n"))
    assert rates[7:11] == (10.0, 50.0, 30.0, 30.0)


def test_hours_as_numbers_no_heading_blank_lines_and_a_byte_order_mark(written: Any) -> None:
    assert read_traffic(written("\ufeff0,5\n\n8.5, 7\n"))[:10] == (5.0,) * 8 + (7.0,) * 2


def test_hours_without_traffic_are_zero(written: Any) -> None:
    assert read_traffic(written("0,0\n9,10\n17,0\n")) == (0.0,) * 9 + (10.0,) * 8 + (0.0,) * 7


@pytest.mark.parametrize(
    "line",
    ["24:00,5", "25,5", "12:60,5", "-1,5", "9,-5", "9,nan", "9,inf", "9", "9,5,5", "noon,5", "9,much", "07:00,5"],
)
def test_a_line_that_makes_no_sense_is_named(written: Any, line: str) -> None:
    with pytest.raises(BadInput) as caught:
        read_traffic(written(f"time,rate_per_s\n08:00,1\n{line}\n"))
    assert "line 3" in caught.value.what
    assert line.split(",")[0] in caught.value.what


@pytest.mark.parametrize("text", ["", "time,rate_per_s\n", "08:00,0\n"])
def test_a_day_without_traffic_needs_no_fleet(written: Any, text: str) -> None:
    with pytest.raises(BadInput, match="no rate above zero"):
        read_traffic(written(text))


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"none\.csv"):
        read_traffic(tmp_path / "none.csv")
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00\xd8")
    with pytest.raises(BadInput, match=r"bytes\.csv"):
        read_traffic(tmp_path / "bytes.csv")


def test_a_constant_rate_is_a_flat_day() -> None:
    assert constant_rate(7.0) == (7.0,) * 24
