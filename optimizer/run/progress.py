"""Show a run at the terminal: a live display on a TTY, one line per event elsewhere."""

from __future__ import annotations

import time

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
    "finish": "Writing files",
}


class Progress(LiveDisplay):
    """Shows events on stderr. On a TTY the bottom line is updated, and final lines scroll above it."""

    def __init__(self, console: Console, *, budget_s: float) -> None:
        super().__init__(console)
        self._budget_s = budget_s
        self._started = time.monotonic()
        self._phase = PHASES["prepare"]
        self._now = ""
        self._best: Trial | None = None

    def __call__(self, event: events.Event) -> None:
        """Show one event."""
        match event:
            case events.PhaseStarted():
                self._phase = PHASES.get(event.name, event.name)
                self._now = event.detail
                if self._live is None or event.detail:
                    self._say(f"[bold]{self._phase}[/bold] {escape(event.detail)}".rstrip())
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
                self._say(trial_line(event.trial, is_best=event.best is event.trial))
            case events.ConfirmationEnded():
                self._say(certified_line(event))

    def _say(self, markup: str) -> None:
        line = Text.from_markup(f"[dim]{self._clock()}[/dim] {markup}")
        self._console.print(line, highlight=False, soft_wrap=True)

    def _clock(self) -> str:
        seconds = int(time.monotonic() - self._started)
        return f"{seconds // 60:02d}:{seconds % 60:02d}"

    def _picture(self) -> Group:
        left = max(0.0, self._budget_s - (time.monotonic() - self._started))
        best = ""
        if self._best is not None and self._best.rate_at_limit_per_s is not None:
            best = f"best {rate_text(self._best)} (trial {self._best.number})"
        line = Table.grid(padding=(0, 2))
        line.add_row(
            Spinner("dots"),
            Text(self._phase, style="bold"),
            Text(self._now, overflow="ellipsis", no_wrap=True),
            Text(best, style="green", no_wrap=True),
            Text(f"at most {left // 60:.0f}:{left % 60:02.0f} left", style="dim", no_wrap=True),
        )
        return Group(line)


_AT_NO_RATE = "[yellow]met the SLO at no rate[/yellow]"


def trial_line(trial: Trial, *, is_best: bool) -> str:
    """Return a finished trial as one line of rich markup."""
    match trial.state:
        case "complete":
            outcome = rate_text(trial)
        case "pruned":
            outcome = "pruned"
        case "infeasible":
            outcome = "[yellow]infeasible[/yellow]" if trial.rate_high_per_s else _AT_NO_RATE
        case "failed":
            outcome = "[red]failed[/red]"
    text = f"trial {trial.number:<3} {escape(knobs_text(trial.served)):<44} {outcome}"
    if is_best:
        text = f"[green]{text}  best so far[/green]"
    elif trial.state != "complete":
        text += f" [dim]({escape(trial.reason.splitlines()[0])})[/dim]"
    changes = "".join(f" [yellow]({escape(change)})[/yellow]" for change in trial.changes)
    return text + changes + _marked(trial.contention)


def _marked(contention: CpuContention | None) -> str:
    mark = mark_of(contention)
    return "" if mark is None else f" [yellow]({mark})[/yellow]"


def certified_line(event: events.ConfirmationEnded) -> str:
    """Return a confirmation run as one line of rich markup."""
    if event.certificate is None:
        how = "violated the SLO in" if event.violated else "was inconclusive for"
        return f"[yellow]{format_rate(event.rate_per_s)}/s {how} trial {event.trial.number}[/yellow]"
    return (
        f"[green]{'certified' if event.certificate.confirmed_again else 'met once'}[/green] "
        f"{format_rate(event.certificate.rate_per_s)}/s for trial {event.trial.number}: "
        f"{quantile_name(event.certificate.first.quantile)} {event.certificate.first.latency_ms:.1f} ms "
        f"({event.certificate.first.latency_low_ms:.1f} to {event.certificate.first.latency_high_ms:.1f}), "
        f"{event.certificate.requests:,} requests{_marked(event.certificate.contention)}"
    )
