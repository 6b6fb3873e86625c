from typing import get_args

import pytest
from load_records import capacity, check, compared, load, measurement, record
from rich.console import Console

from loadgen.records.record import LoadTestRecord, Outcome
from loadgen.reports.views import answer_view

LONG = "a-model-with-a-rather-long-name-as-generated-by-a-registry-and-its-version-0123456789"


def lines(shown: LoadTestRecord, width: int = 80) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(answer_view(shown))
    return capture.get().splitlines()


@pytest.mark.parametrize("outcome", sorted(get_args(Outcome)))
def test_the_verdict_ends_the_screen(outcome: str) -> None:
    shown = lines(record(outcome=outcome, reasons=("because of this",)))
    assert "because of this" in shown[-3]  # then the load, and the frame


@pytest.mark.parametrize("width", [60, 80, 120])
def test_everything_fits_the_terminal(width: int) -> None:
    shown = record(
        target=record().target.model_copy(update={"model_name": LONG, "url": "https://" + LONG}),
        checks=(
            check(),
            check(name="errors <= 0.1 %", kind="errors", limit=0.001, answer="inconclusive", low=None),
        ),
        capacity=capacity(),
        comparison=(compared(),),
        notes=(LONG * 2,),
        measurement=measurement(error_example="x" * 500, problems=("the client fell behind " * 5,)),
    )
    assert all(len(line) <= width for line in lines(shown, width))


def test_the_figures_are_there() -> None:
    text = "\n".join(lines(record()))
    for figure in (
        "41.2",
        "10,000",
        "6,001 in 30 s: 199.8/s (200/s planned)",
        "2 time-out, 1 http 503",
        "queue 1.20",
        "0.31 ms",
    ):
        assert figure in text


def test_what_is_unknown_is_not_zero() -> None:
    shown = record(measurement=measurement(latency_p99_ms=None, server=None, network_and_client_ms=None))
    text = "\n".join(lines(shown))
    assert "queue" not in text
    assert " - " in text


def test_a_closed_loop_says_so() -> None:
    shown = record(load=load(kind="closed", rate_per_s=None, concurrency=4))
    assert "closed loop, 4 callers" in "\n".join(lines(shown))
