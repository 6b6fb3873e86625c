"""Show a run at the terminal: a live display on a TTY, one line per event elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterable

from rich.cells import cell_len
from rich.console import Console, Group
from rich.markup import escape
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from loadgen.console import LiveDisplay
from loadgen.measurement.cpu_contention import CpuContention, mark_of
from loadgen.records.formats import format_rate
from loadgen.spec.limits import quantile_name
from search.labels import knobs_text, rate_text
from search.trials import events
from search.trials.trial import Trial

PHASES = {
    "prepare": "Preparing",
    "profile": "Profiling",
    "search": "Searching",
    "certify": "Certifying",
    "finish": "Finishing",
}


class Progress(LiveDisplay):
    """Shows events on stderr. On a TTY the bottom line is updated, and final lines scroll above it."""

    def __init__(self, console: Console, *, budget_s: float) -> None:
        super().__init__(console)
        self._budget_s = budget_s
        self._started = time.monotonic()
        self._phase = PHASES["prepare"]
        self._now = ""
        self._steps = list[str]()  # of the preparation, under way
        self._best: Trial | None = None

    def __call__(self, event: events.Event) -> None:
        """Show one event."""
        match event:
            case events.PhaseStarted():
                self._phase = PHASES.get(event.name, event.name)
                self._now = event.detail
                self._steps.clear()
                if self._live is None or event.detail:
                    self._say(f"[bold]{self._phase}[/bold] {escape(event.detail)}".rstrip())
            case events.StepStarted():
                self._steps.append(event.step)
            case events.StepEnded():
                self._steps = [step for step in self._steps if step != event.step]
            case events.Note():
                mark = "[yellow]note:[/yellow]" if event.warning else "note:"
                self._say(f"{mark} {escape(event.text)}")
            case events.TrialStarted():
                self._now = f"trial {event.number}: {event.knobs}"
            case events.Probed():
                seen = (
                    "nothing came back"
                    if event.latency_ms is None
                    else f"{quantile_name(event.quantile)} {event.latency_ms:.1f} ms"
                )
                self._now = f"trial {event.number}: {format_rate(event.rate_per_s)}/s, {seen}, {event.verdict}"
            case events.TrialEnded():
                self._best = event.best
                self._say(trial_line(event.trial, is_best=event.best is event.trial, most=self._most()))
            case events.ConfirmationEnded():
                self._say(certified_line(event, most=self._most()))

    def _say(self, markup: str) -> None:
        line = Text.from_markup(f"[dim]{self._clock()}[/dim] {markup}")
        self._console.print(line, highlight=False, soft_wrap=self._live is None)

    def _most(self) -> int | None:
        """Return the characters of a line after the time; None if it is not for a terminal."""
        return None if self._live is None else self._console.width - len(f"{self._clock()} ")

    def _clock(self) -> str:
        seconds = int(time.monotonic() - self._started)
        return f"{seconds // 60:02d}:{seconds % 60:02d}"

    def _picture(self) -> Group:
        left = round(max(0.0, self._budget_s - (time.monotonic() - self._started)))
        best = ""
        if self._best is not None and self._best.rate_at_limit_per_s is not None:
            best = f"best: trial {self._best.number}, {rate_text(self._best)}"
        line = Table.grid(padding=(0, 2))
        for shrinks in (False, False, True, False, False):
            line.add_column(no_wrap=not shrinks)
        line.add_row(
            Spinner("dots"),
            Text(self._phase, style="bold"),
            Text(self._steps[-1] if self._steps else self._now, overflow="ellipsis", no_wrap=True),
            Text(best, style="green", no_wrap=True),
            Text(f"at most {left // 60}:{left % 60:02} left", style="dim", no_wrap=True),
        )
        return Group(line)


KNOBS_WIDTH, LEAST_OF_REASON = 44, 30
"""Rates stand below each other, 44 characters after the number; on a terminal a reason has 30 at least."""

_AT_NO_RATE = "[yellow]met the SLO at no rate[/yellow]"


def trial_line(trial: Trial, *, is_best: bool, most: int | None = None) -> str:
    """Return a finished trial as one line of rich markup; what is least important goes for `most` characters."""

    head, knobs = f"trial {trial.number:<3}", knobs_text(trial.served)
    best = "  best so far" if is_best else ""
    match trial.state:
        case "complete":
            outcome = rate_text(trial)
        case "pruned":
            outcome = "pruned"
        case "infeasible":
            outcome = "[yellow]infeasible[/yellow]" if trial.rate_high_per_s else _AT_NO_RATE
        case "failed":
            outcome = "[red]failed[/red]"
    reason = "" if is_best or trial.state == "complete" else trial.reason.splitlines()[0]
    aligned = KNOBS_WIDTH
    if most is not None:
        room = most - cell_len(f"{head}  {_plain(outcome)}")
        if max(len(knobs), aligned) + len(best) > room:
            best = best.removesuffix(" so far")
        aligned = min(aligned, room - len(best) - min(len(reason), LEAST_OF_REASON))
        knobs = shortened(knobs, max(aligned, room - len(best) if not reason else 0), at=", ")
        reason = shortened(reason, room - max(len(knobs), aligned) - len(" ()"), at=" ")
    text = f"{head} {escape(knobs):<{aligned}} {outcome}"
    if is_best:
        text = f"[green]{text}{best}[/green]"
    more = [f" [dim]({escape(reason)})[/dim]"] if reason else []
    more += [f" [yellow]({escape(change)})[/yellow]" for change in trial.changes]
    return _with_what_fits(text, [*more, _marked(trial.contention)], most)


def shortened(text: str, most: int, *, at: str) -> str:
    """Return the text, without its last parts if it is longer than this; an ellipsis says so."""
    while len(text) > most and at in text:
        text = text.removesuffix("…").rpartition(at)[0] + "…"
    return text


def _with_what_fits(text: str, parts: Iterable[str], most: int | None) -> str:
    """Return the line with those of the parts after it, in order, that leave it at most so long."""
    for part in parts:
        if most is None or cell_len(_plain(text + part)) <= most:
            text += part
    return text


def _plain(markup: str) -> str:
    return Text.from_markup(markup).plain


def _marked(contention: CpuContention | None) -> str:
    mark = mark_of(contention)
    return "" if mark is None else f" [yellow]({mark})[/yellow]"


def certified_line(event: events.ConfirmationEnded, most: int | None = None) -> str:
    """Return a confirmation run as one line of rich markup, of at most so many characters."""
    certificate = event.certificate
    if certificate is None:
        how = "violated the SLO in" if event.violated else "was inconclusive for"
        return f"[yellow]{format_rate(event.rate_per_s)}/s {how} trial {event.trial.number}[/yellow]"
    first = certificate.first
    text = (
        f"[green]{'certified' if certificate.confirmed_again else 'met once'}[/green] "
        f"{format_rate(certificate.rate_per_s)}/s for trial {event.trial.number}: "
        f"{quantile_name(first.quantile)} {first.latency_ms:.1f} ms"
    )
    bounds = f" ({first.latency_low_ms:.1f} to {first.latency_high_ms:.1f})"
    more = [bounds, f", {certificate.requests:,} requests", _marked(certificate.contention)]
    return _with_what_fits(text, more, most)
