"""`optimize compare`: a run beside an earlier one, and the exit code that stops a pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from loadgen.printable import printable
from optimizer.errors import BadInput
from optimizer.reports.markdown import literal
from search.comparison import compare_runs
from search.demand import traffic_text
from search.run_files import read_recommendation

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rich.console import RenderableType

    from loadgen.reports.record import ComparisonRecord
    from search.comparison import RunComparisonRecord
    from search.records import RecommendationRecord, Slo

WORSE_EXIT_CODE = 97
TOLERANCE = 0.02
"""Of every figure. Machines are not the same from one hour to the next, which no statistics of one run can see."""

_STYLES = {"worse": "bold red", "better": "green", "no difference seen": "dim"}


def read_baseline(directory: Path, slo: Slo) -> RecommendationRecord:
    """The earlier run's recommendation. Raises BadInput where it cannot be read, or kept another limit."""
    baseline = read_recommendation(directory)
    if baseline.slo.limits != slo.limits:
        raise BadInput(
            f"The run in {directory} keeps {baseline.slo.text}, the other one {slo.text}.",
            "Compare runs with the same limit.",
        )
    return baseline


def check_same_demand(baseline: RecommendationRecord, now: RecommendationRecord, *, name: str) -> None:
    """Raises BadInput where the runs were measured with traffic of different kinds: their rates say nothing."""
    if baseline.demand.text != now.demand.text:
        raise BadInput(
            f"The run in {name} was measured with {traffic_text(baseline.demand)}, the other one with "
            f"{traffic_text(now.demand)}.",
            "Compare runs under the same traffic.",
        )


def compare_directories(before: Path, now: Path, *, tolerance: float) -> RunComparisonRecord:
    """The run in `now` beside the one in `before`. Raises BadInput."""
    if not 0 <= tolerance < 1:
        raise BadInput(f"--tolerance {tolerance:g} is out of range.", "Give a share, such as 0.02 for 2 %.")
    later = read_recommendation(now)
    earlier = read_baseline(before, later.slo)
    check_same_demand(earlier, later, name=str(before))
    return compare_runs(earlier, later, names=(str(before), str(now)), tolerance=tolerance)


def exit_code_of(comparison: RunComparisonRecord) -> int:
    """97 when worse, else 0."""
    return WORSE_EXIT_CODE if comparison.answer == "worse" else 0


def comparison_view(comparison: RunComparisonRecord) -> RenderableType:
    """The comparison on the terminal."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for heading in ("", "before", "now", "change", ""):
        table.add_column(heading, justify="left" if heading == "" else "right")
    for figure in comparison.figures:
        answer = Text(figure.answer, style=_STYLES[figure.answer])
        table.add_row(
            figure.figure, _figure(figure, figure.baseline), _figure(figure, figure.now), change(figure), answer
        )
    notes = [Text(note, style="dim") for note in comparison.notes]
    verdict = Text(_verdict(comparison), style=_STYLES[comparison.answer])
    return Group(verdict, table, *notes)


def comparison_markdown(comparison: RunComparisonRecord) -> str:
    """The comparison for a pull request."""
    text = "\n".join(_markdown_lines(comparison)) + "\n"
    return printable(text, most=len(text), lines=True)


def _markdown_lines(comparison: RunComparisonRecord) -> Iterator[str]:
    yield f"**{_verdict(comparison)}**\n"
    yield "| | before | now | change | |\n| --- | ---: | ---: | ---: | --- |"
    for figure in comparison.figures:
        shown = (figure.figure, _figure(figure, figure.baseline), _figure(figure, figure.now), change(figure))
        yield f"| {' | '.join(map(literal, shown))} | {figure.answer} |"
    yield ""
    yield from map(literal, comparison.notes)


def _verdict(comparison: RunComparisonRecord) -> str:
    if not comparison.figures:
        return "Nothing could be compared"
    return {
        "worse": "Worse than before",
        "better": "Better than before",
        "no difference seen": "No difference seen",
    }[comparison.answer]


def change(figure: ComparisonRecord) -> str:
    """`-6.7 % (-11 to -2)`, with bounds at 95 % each where they are known."""
    low = "?" if figure.ratio_low is None else f"{100 * (figure.ratio_low - 1):+.0f}"
    high = "?" if figure.ratio_high is None else f"{100 * (figure.ratio_high - 1):+.0f}"
    return f"{100 * (figure.ratio - 1):+.1f} % ({low} to {high})"


def _figure(figure: ComparisonRecord, value: float) -> str:
    unit = f" {figure.unit}" if figure.unit else ""
    return f"{value:,.0f}{unit}" if value >= 1000 else f"{value:.3g}{unit}"
