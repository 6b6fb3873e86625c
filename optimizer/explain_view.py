"""The explanation of a trial on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import Group
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from optimizer.report import UNKNOWN
from search.words import record_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from search.explain import Explanation

_ROLES = {
    "winner": ", the recommendation",
    "baseline": ", the baseline",
    "alternative": ", an alternative of the recommendation",
    None: "",
}


def explanation_view(explanation: Explanation) -> RenderableType:
    """Four questions and their answers, with every load run that decided anything."""
    trial = explanation.trial
    on_gpu = trial.measurement is not None and trial.measurement.gpu is not None
    knobs = record_text(trial.config, on_gpu=on_gpu)
    parts: list[RenderableType] = [
        Text.from_markup(f"[bold]Trial {trial.number}[/bold]{_ROLES[explanation.role]}: {escape(knobs)}"),
        *_section("Why it was tried", explanation.why),
        *_section("What was predicted", explanation.predicted),
        *_section("What was seen", explanation.seen),
    ]
    if trial.load_runs:
        parts.append(Padding(_load_runs(explanation), (0, 0, 0, 2)))
    parts += _section("How it ended", explanation.ended)
    if explanation.confirmations:
        parts.append(Padding(_confirmations(explanation), (0, 0, 0, 2)))
    spent = f"{trial.load_s:.1f} s of load, {trial.loading_s:.1f} s of loading the model"
    parts += _section("What it cost", (spent,))
    return Group(*parts)


def _section(title: str, lines: tuple[str, ...]) -> Iterator[RenderableType]:
    yield Text("")
    yield Text(title, style="bold")
    for line in lines:
        yield Padding(Text(line), (0, 0, 0, 2))


def _load_runs(explanation: Explanation) -> Table:
    table = _table("load", "seconds", "requests", "over", "latency", "answer", "seed")
    for run in explanation.trial.load_runs:
        late = "overloaded" if run.overloaded else "looks kept" if run.kept else "looks broken"
        table.add_row(
            f"{run.rate_per_s:,.4g}/s",
            UNKNOWN if run.seconds is None else f"{run.seconds:.1f}",
            UNKNOWN if run.requests is None else f"{run.requests:,}",
            UNKNOWN if run.violations is None else f"{run.violations:,}",
            _ms(run.latency_ms),
            late if run.trusted else "; ".join(run.problems) or "not trusted",
            UNKNOWN if run.seed is None else str(run.seed),
        )
    return table


def _confirmations(explanation: Explanation) -> Table:
    table = _table("confirming", "seconds", "requests", "over", "latency", "answer", "")
    for one in explanation.confirmations:
        answer = "kept" if one.kept else "overloaded" if one.overloaded else one.answer
        table.add_row(
            f"{one.rate_per_s:,.4g}/s",
            f"{one.seconds:.1f}",
            f"{one.requests:,}",
            f"{one.violations:,}",
            _ms(one.latency_ms),
            "; ".join(one.problems) or answer,
            "on a restarted server" if one.again else "",
        )
    return table


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for position, heading in enumerate(headings):
        table.add_column(heading, justify="right" if 0 < position < 5 else "left")
    return table


def _ms(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.3g} ms"
