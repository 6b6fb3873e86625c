"""`optimize compare`: a run compared with an earlier one, and the exit code that stops a pipeline."""

from __future__ import annotations

from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from loadgen.errors import BadInput
from loadgen.exit_codes import CODES
from loadgen.printable import printable
from loadgen.records.formats import change_in_words, format_rate
from loadgen.records.record import ComparisonRecord
from loadgen.reports.kit import NUMBER, Cell, Table, literal, markdown_table, table_of_texts, terminal_table
from search.answer.comparison import RunComparisonRecord, compare_runs
from search.records.recommendation import RecommendationRecord
from search.records.run_files import read_recommendation
from search.records.slo import Slo, traffic_text

TOLERANCE = 0.02
"""A figure may be worse by this share: machines differ from hour to hour, which no statistics of one run show."""

_STYLES = {"worse": "bold red", "better": "green", "no difference seen": "dim"}


def read_baseline(directory: Path, slo: Slo) -> RecommendationRecord:
    """Return the earlier run's recommendation. Raises BadInput if it cannot be read or has other limits."""
    baseline = read_recommendation(directory)
    check_same_limits(directory, baseline.slo, slo)
    return baseline


def check_same_limits(path: Path, slo: Slo, other: Slo) -> None:
    """Raise BadInput if the run in `path` has other limits."""
    if slo.limits != other.limits:
        raise BadInput(
            f"The run in {path} has the limit {slo.text}, the other one {other.text}.",
            "Give runs with the same limit.",
        )


def check_same_traffic(path: Path, found: RecommendationRecord, other: RecommendationRecord) -> None:
    """Raise BadInput if the run in `path` was measured with other traffic: the rates of the two do not compare."""
    if found.workload.text != other.workload.text:
        raise BadInput(
            f"The run in {path} was measured with {traffic_text(found.workload)}, the other one with "
            f"{traffic_text(other.workload)}.",
            "Give runs under the same traffic.",
        )


def compare_directories(before: Path, now: Path, *, tolerance: float) -> RunComparisonRecord:
    """Compare the run in `now` with the one in `before`. Raises BadInput."""
    if not 0 <= tolerance < 1:
        raise BadInput(f"--tolerance {tolerance:g} is out of range.", "Give a share, such as 0.02 for 2 %.")
    later = read_recommendation(now)
    earlier = read_baseline(before, later.slo)
    check_same_traffic(before, earlier, later)
    return compare_runs(earlier, later, names=(str(before), str(now)), tolerance=tolerance)


def exit_code_of(comparison: RunComparisonRecord) -> int:
    """Return 97 if the run is worse, else 0."""
    return CODES["worse"] if comparison.answer == "worse" else 0


def comparison_view(comparison: RunComparisonRecord) -> RenderableType:
    """Return the comparison for the terminal."""
    notes = [Text(note, style="dim") for note in comparison.notes]
    verdict = Text(_verdict(comparison), style=_STYLES[comparison.answer])
    return Group(verdict, terminal_table(_table(comparison)), *notes)


def comparison_markdown(comparison: RunComparisonRecord) -> str:
    """Return the comparison for a pull request."""
    notes = map(literal, comparison.notes)
    lines = [f"**{_verdict(comparison)}**", *markdown_table(_table(comparison)), "", *notes]
    text = "\n".join(lines) + "\n"
    return printable(text, most=len(text), lines=True)


def _table(comparison: RunComparisonRecord) -> Table:
    rows = [
        (
            figure.figure,
            [
                *(Cell(text=_figure(figure, value), style=NUMBER) for value in (figure.baseline, figure.now)),
                Cell(text=change_in_words(figure), style=NUMBER),
                Cell(text=figure.answer, style=figure.answer),
            ],
        )
        for figure in comparison.figures
    ]
    return table_of_texts(("", "before", "now", "change", ""), rows)


def _verdict(comparison: RunComparisonRecord) -> str:
    if not comparison.figures:
        return "Nothing could be compared"
    return {
        "worse": "Worse than before",
        "better": "Better than before",
        "no difference seen": "No difference seen",
    }[comparison.answer]


def _figure(figure: ComparisonRecord, value: float) -> str:
    unit = f" {figure.unit}" if figure.unit else ""
    if figure.unit == "requests/s":
        return f"{format_rate(value)}{unit}"
    return f"{value:,.0f}{unit}" if value >= 1000 else f"{value:.3g}{unit}"
