from pathlib import Path

import pytest

from loadgen.errors import BadInput
from loadgen.spec.plan import Arrivals, arrivals_from_file, arrivals_from_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("poisson", Arrivals()),
        ("constant", Arrivals(kind="constant")),
        ("gamma:cv=2", Arrivals(kind="gamma", cv=2.0)),
        ("ramp:from=0.5,to=2", Arrivals(kind="ramp", levels=(0.5, 2.0))),
        ("steps:0.5,1,1.5", Arrivals(kind="steps", levels=(0.5, 1.0, 1.5))),
        ("spike:level=3,start=0.2,end=0.4", Arrivals(kind="spike", levels=(3.0,), start=0.2, end=0.4)),
        ("spike:level=3", Arrivals(kind="spike", levels=(3.0,), start=0.4, end=0.5)),
    ],
)
def test_arrivals_are_read(text: str, expected: Arrivals) -> None:
    assert arrivals_from_text(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "normal",
        "",
        "gamma",
        "gamma:cv",
        "gamma:cv=two",
        "gamma:k=2",
        "steps",
        "steps:1,nan",
        "ramp:from=1",
        "poisson:2",
    ],
)
def test_other_words_are_refused_with_every_kind_named(text: str) -> None:
    with pytest.raises(BadInput) as caught:
        arrivals_from_text(text)
    assert "gamma:cv=2" in caught.value.fix


def test_a_trace_of_times_may_have_a_heading_comments_and_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("time_s\n0.0\n\n0.25 # a comment\n1.5\n")
    assert arrivals_from_file(path) == Arrivals(kind="trace", times_s=(0.0, 0.25, 1.5))


def test_a_trace_of_times_and_rates(tmp_path: Path) -> None:
    path = tmp_path / "rates.csv"
    path.write_text("time,rate\n0,100\n60,250.5\n")
    assert arrivals_from_file(path) == Arrivals(kind="rates", times_s=(0.0, 60.0), levels=(100.0, 250.5))


@pytest.mark.parametrize("text", ["0\n1,5\n2\n", "0\nsoon\n", "0,1,2\n1,2,3\n"])
def test_a_line_of_another_kind_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(BadInput, match=r"line [12]"):
        arrivals_from_file(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x80")
    for path in (tmp_path, tmp_path / "none", tmp_path / "binary"):
        with pytest.raises(BadInput, match=str(path)):
            arrivals_from_file(path)
