"""What is kept of a run that has more requests than fit in memory: counts, histograms, blocks and bins of time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from loadgen.histogram import TimesHistogram
from loadgen.measurement import RequestLog, concatenate, no_rows
from loadgen.outcomes import outcome_name
from loadgen.time_blocks import TimeBlocks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

_RECENT_NS = 2_000_000_000
_SHARES = (0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01)  # slower than the levels at which bursts are measured
_FRACTIONS = (0.25, 0.5, 0.75, 1.0)  # of each limit, at which they are measured too
_FIRST_ROWS = 1000  # that the levels are taken from
SO_FAR = (0.5, 0.66, 0.75, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999, 0.9999, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """The requests that were due in one bin of time; `so_far_ns` are percentiles of the run up to its end."""

    number: int
    n: int
    failures: int
    p50_ns: int
    p99_ns: int
    max_ns: int
    so_far_n: int
    so_far_failures: int
    so_far_mean_ns: float
    so_far_ns: tuple[int, ...]


@dataclass(slots=True, kw_only=True)
class Kind:
    """How often requests ended in one way, and when for the first and the last time."""

    n: int
    first_ns: int
    last_ns: int


class Tally:
    """Add rows in the order of the schedule, each of them ended; its size does not grow with them.

    `limits_ms` are the latencies that a verdict will be asked about: violations of these are counted exactly.
    """

    def __init__(
        self, *, timeout_s: float, limits_ms: Sequence[float], bin_s: float, max_in_flight: int | None = None
    ) -> None:
        self.timeout_ns = round(timeout_s * 1e9)
        self.bin_s = bin_s
        self.latency = TimesHistogram()  # failed requests at the time-out, or later
        self.service = TimesHistogram()
        self.send_lag = TimesHistogram()  # of requests that no cap held back
        self.failures = 0
        self.outcomes: dict[int, Kind] = {}
        self.last_sent_ns = 0
        self.last_due_ns = 0
        self._limits_ns = [round(limit_ms * 1e6) for limit_ms in limits_ms]
        self._blocks: TimeBlocks | None = None
        self._first: list[RequestLog] = []  # until there are enough to choose levels from
        self._recent: deque[RequestLog] = deque()
        self._cap = max_in_flight
        self._late_ends_ns = np.zeros(0, np.int64)
        self._bins: list[Bin] = []
        self._bin = _OpenBin()

    def __len__(self) -> int:
        return len(self.latency)

    def add(self, log: RequestLog) -> None:
        """Count these requests."""
        if len(log) == 0:
            return
        self._add_to_bins(log, log.latency_charged_ns(self.timeout_ns))
        self.service.add(log.service_ns)
        self.send_lag.add(self._own_lag_ns(log))
        self._count_outcomes(log)
        self.last_sent_ns = max(self.last_sent_ns, int(log.sent_ns.max()))
        self.last_due_ns = int(log.scheduled_ns[-1])
        self._add_to_blocks(log)
        self._recent.append(log)
        while len(self._recent) > 1 and self._recent[1].scheduled_ns[0] < log.scheduled_ns[-1] - _RECENT_NS:
            self._recent.popleft()

    @property
    def errors(self) -> dict[str, int]:
        """How many requests failed in which way, the most frequent first."""
        failed = [(kind.n, outcome_name(outcome)) for outcome, kind in self.outcomes.items() if outcome]
        return {name: n for n, name in sorted(failed, reverse=True)}

    @property
    def recent(self) -> RequestLog:
        """The requests of the last two seconds, or more."""
        return concatenate(self._recent) if self._recent else no_rows()

    @property
    def blocks(self) -> TimeBlocks:
        """What verdicts are drawn from."""
        return self._blocks or self._blocks_of_first()

    @property
    def bins(self) -> list[Bin]:
        """The run over time, in bins of `bin_s`; those without a request are missing."""
        return [*self._bins, *self._closed_bin()]

    def _count_outcomes(self, log: RequestLog) -> None:
        for outcome in np.unique(log.outcome).tolist():
            ended_ns = log.done_ns[log.outcome == outcome]
            first_ns, last_ns = int(ended_ns.min()), int(ended_ns.max())
            kind = self.outcomes.setdefault(outcome, Kind(n=0, first_ns=first_ns, last_ns=last_ns))
            kind.n += len(ended_ns)
            kind.first_ns, kind.last_ns = min(kind.first_ns, first_ns), max(kind.last_ns, last_ns)

    def _add_to_blocks(self, log: RequestLog) -> None:
        if self._blocks is not None:
            self._blocks.add(log)
            return
        self._first.append(log)
        if sum(map(len, self._first)) >= _FIRST_ROWS:
            self._blocks = self._blocks_of_first()
            self._first = []

    def _blocks_of_first(self) -> TimeBlocks:
        levels = [int(fraction * limit_ns) for limit_ns in self._limits_ns for fraction in _FRACTIONS]
        if self._first:
            seen = np.concatenate([log.latency_ns for log in self._first])
            levels += [int(level) for level in np.quantile(seen, [1 - share for share in _SHARES])]
        blocks = TimeBlocks(levels)
        for log in self._first:
            blocks.add(log)
        return blocks

    def _own_lag_ns(self, log: RequestLog) -> NDArray[np.int64]:
        """The send lag of the requests that no cap held back: that of the others was asked for."""
        if self._cap is None:
            return log.send_lag_ns
        ends_ns = np.sort(np.concatenate([self._late_ends_ns, log.done_ns]))
        left = np.searchsorted(np.sort(log.sent_ns), log.scheduled_ns, side="left") + len(self._late_ends_ns)
        in_flight = left - np.searchsorted(ends_ns, log.scheduled_ns)
        self._late_ends_ns = ends_ns[ends_ns > log.scheduled_ns[-1]]
        return log.send_lag_ns[in_flight < self._cap]

    def _add_to_bins(self, log: RequestLog, charged_ns: NDArray[np.int64]) -> None:
        numbers = (log.scheduled_ns / (self.bin_s * 1e9)).astype(np.int64)
        edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        for start, end in pairwise(edges):
            number = int(numbers[start])
            if number != self._bin.number:
                self._bins += self._closed_bin()
                self._bin.begin(number)
            failures = int(np.count_nonzero(log.outcome[start:end]))
            self._bin.latency.add(charged_ns[start:end])
            self._bin.failures += failures
            self.latency.add(charged_ns[start:end])
            self.failures += failures

    def _closed_bin(self) -> Iterable[Bin]:
        times = self._bin.latency
        if not len(times):
            return
        p50_ns, p99_ns = times.percentiles_ns((0.5, 0.99))
        yield Bin(
            number=self._bin.number,
            n=len(times),
            failures=self._bin.failures,
            p50_ns=p50_ns,
            p99_ns=p99_ns,
            max_ns=times.greatest_ns,
            so_far_n=len(self.latency),
            so_far_failures=self.failures,
            so_far_mean_ns=self.latency.mean_ns,
            so_far_ns=tuple(self.latency.percentiles_ns(SO_FAR)),
        )


class _OpenBin:
    def __init__(self) -> None:
        self.latency = TimesHistogram()
        self.begin(0)

    def begin(self, number: int) -> None:
        self.number = number
        self.latency.clear()
        self.failures = 0
