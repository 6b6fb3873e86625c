"""A load test while it runs: a live display on a terminal, a line every ten seconds elsewhere, or every second."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from loadgen.command.web import WebDashboard
from loadgen.console import LiveDisplay
from loadgen.measurement.request_log import RequestLog, percentiles_ns
from loadgen.records.formats import format_ms, format_rate

_RECENT_S = 2.0
_MAX_SORTED = 200_000  # so that looking never costs more than a few milliseconds
_LINE_EVERY_S = 10.0
_NS_PER_MS = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class SoFar:
    """Figures of a growing log: times in ms over its last 200,000 requests, without NaN, None if it is empty."""

    failed: int = 0
    in_flight: int = 0  # when the last request of the log was due
    recent_rate_per_s: float = 0.0
    p50_ms: float | None = None
    p99_ms: float | None = None
    send_lag_p99_ms: float | None = None


def so_far(log: RequestLog, timeout_ns: int) -> SoFar:
    """The figures of the requests that have come back, or are known to be late."""
    if not len(log):
        return SoFar()
    recent = log.rows(max(0, len(log) - _MAX_SORTED), len(log))
    p50, p99 = percentiles_ns(recent.latency_charged_ns(timeout_ns), (0.5, 0.99))
    (lag,) = percentiles_ns(recent.send_lag_ns.copy(), (0.99,))
    last_ns = int(log.scheduled_ns[-1])
    window_ns = min(_RECENT_S * 1e9, max(1, last_ns))
    first = int(np.searchsorted(log.scheduled_ns, last_ns - window_ns, side="right"))
    return SoFar(
        failed=int(np.count_nonzero(log.outcome)),
        in_flight=int(np.count_nonzero(recent.done_ns > last_ns)),
        recent_rate_per_s=(len(log) - first) / window_ns * 1e9,
        p50_ms=p50 / _NS_PER_MS,
        p99_ms=p99 / _NS_PER_MS,
        send_lag_p99_ms=lag / _NS_PER_MS,
    )


class LiveView(LiveDisplay):
    """Show phases, notes and figures on stderr."""

    def __init__(
        self,
        console: Console,
        *,
        timeout_s: float,
        limit_ms: float | None,
        dashboard: WebDashboard | None = None,
        verbose: bool = False,
    ) -> None:
        super().__init__(console)
        self._verbose = verbose
        self._line_every_s = 1.0 if verbose else _LINE_EVERY_S
        self._dashboard = dashboard
        self._timeout_ns = round(timeout_s * 1e9)
        self._limit_ms = limit_ms
        self._phase = "Connecting"
        self._phase_started = time.monotonic()
        self._phase_s: float | None = None
        self._seen: SoFar | None = None
        self._next_line = 0.0

    def note(self, text: str, *, warning: bool = False) -> None:
        """A line that stays."""
        self._console.print(
            Text.assemble(("warning: " if warning else "note: ", "bold yellow" if warning else "dim"), text),
            soft_wrap=self._live is None,  # a terminal would break the line in the middle of a word
        )

    def phase(self, text: str, seconds: float | None = None) -> None:
        """Show the current phase, and its duration if it is known."""
        self._phase, self._phase_s = text, seconds
        self._phase_started = time.monotonic()
        self._seen = None
        self._next_line = self._phase_started + self._line_every_s
        if self._dashboard is not None:
            self._dashboard.begin()
        if self._live is None:
            self._console.print(Text(text), soft_wrap=True)

    def look(self, log: RequestLog) -> None:
        """Show the figures so far."""
        with self.unharmed():
            if self._dashboard is not None:
                self._dashboard.look(log, self._timeout_ns)
            self._show(so_far(log, self._timeout_ns))

    def _show(self, seen: SoFar) -> None:
        self._seen = seen
        if (self._live is None or self._verbose) and time.monotonic() >= self._next_line:
            self._next_line += self._line_every_s
            cells = (f"{name} {value}" for name, value in self._cells())
            self._console.print(Text("  " + ", ".join(cells)), soft_wrap=True)

    def _cells(self) -> list[tuple[str, str]]:
        seen = self._seen
        if seen is None:
            return []
        cells = [
            ("rate", f"{format_rate(seen.recent_rate_per_s)}/s"),
            ("in flight", f"{seen.in_flight:,}"),
            ("p50", f"{format_ms(seen.p50_ms)} ms"),
            ("p99", f"{format_ms(seen.p99_ms)} ms"),
            ("errors", f"{seen.failed:,}"),
            ("send lag p99", f"{format_ms(seen.send_lag_p99_ms)} ms"),
        ]
        if self._phase_s is not None:
            left = max(0.0, self._phase_s - (time.monotonic() - self._phase_started))
            cells.append(("left", f"{left:.0f} s"))
        return cells

    def _picture(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        cells = self._cells()
        table.add_row(Text(self._phase, style="bold"))
        if not cells:
            return table
        figures = Table.grid(padding=(0, 2))
        figures.add_row(*(Text(name, style="dim", no_wrap=True) for name, _ in cells))
        figures.add_row(*(Text(value, style=self._style(name), no_wrap=True) for name, value in cells))
        table.add_row(figures)
        return table

    def _style(self, name: str) -> str:
        seen = self._seen
        if seen is None:
            return ""
        if name == "errors" and seen.failed:
            return "red"
        if name == "p99" and self._limit_ms is not None and seen.p99_ms is not None:
            return "green" if seen.p99_ms <= self._limit_ms else "red"
        return ""
