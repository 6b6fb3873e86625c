"""A load test while it runs: a live display on a terminal, a line every ten seconds elsewhere, or every second."""

from __future__ import annotations

import time

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


Cells = list[tuple[str, str, str]]
"""Figures to show: name, value and style."""


def so_far(log: RequestLog, timeout_ns: int, limit_ms: float | None) -> Cells:
    """Return figures of the last 200,000 requests of those that have come back, or are known to be late."""
    recent = log.rows(max(0, len(log) - _MAX_SORTED), len(log))
    rate_per_s, in_flight, times_ms, tone = 0.0, 0, ["-"] * 3, ""
    if len(log):
        p50, p99 = percentiles_ns(recent.latency_charged_ns(timeout_ns), (0.5, 0.99))
        (lag,) = percentiles_ns(recent.send_lag_ns.copy(), (0.99,))
        last_ns = int(log.scheduled_ns[-1])
        window_ns = min(_RECENT_S * 1e9, max(1, last_ns))
        first = int(np.searchsorted(log.scheduled_ns, last_ns - window_ns, side="right"))
        rate_per_s = (len(log) - first) / window_ns * 1e9
        in_flight = int(np.count_nonzero(recent.done_ns > last_ns))
        times_ms = [format_ms(ns / _NS_PER_MS) for ns in (p50, p99, lag)]
        tone = "" if limit_ms is None else "green" if p99 <= limit_ms * _NS_PER_MS else "red"
    failed = int(np.count_nonzero(log.outcome))
    return [
        ("rate", f"{format_rate(rate_per_s)}/s", ""),
        ("in flight", f"{in_flight:,}", ""),
        ("p50", f"{times_ms[0]} ms", ""),
        ("p99", f"{times_ms[1]} ms", tone),
        ("errors", f"{failed:,}", "red" if failed else ""),
        ("send lag p99", f"{times_ms[2]} ms", ""),
    ]


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
        self._seen: Cells = []
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
        self._seen = []
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
            self._seen = so_far(log, self._timeout_ns, self._limit_ms)
            if (self._live is None or self._verbose) and time.monotonic() >= self._next_line:
                self._next_line += self._line_every_s
                cells = (f"{name} {value}" for name, value, _ in self._cells())
                self._console.print(Text("  " + ", ".join(cells)), soft_wrap=True)

    def _cells(self) -> Cells:
        if self._phase_s is None or not self._seen:
            return self._seen
        left = max(0.0, self._phase_s - (time.monotonic() - self._phase_started))
        return [*self._seen, ("left", f"{left:.0f} s", "")]

    def _picture(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        table.add_row(Text(self._phase, style="bold"))
        if cells := self._cells():
            figures = Table.grid(padding=(0, 2))
            figures.add_row(*(Text(name, style="dim", no_wrap=True) for name, _, _ in cells))
            figures.add_row(*(Text(value, style=style, no_wrap=True) for _, value, style in cells))
            table.add_row(figures)
        return table
