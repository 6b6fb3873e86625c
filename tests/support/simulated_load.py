"""A server and a load generator in virtual time: `loadgen.statistics.probe.Measure` over a simulated queue."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from simulated_queues import Queue

from loadgen.sending.worker import BacklogRule
from loadgen.statistics.probe import Probe, Watch
from loadgen.status import UNFINISHED

if TYPE_CHECKING:
    from loadgen.measurement.request_log import RequestLog

_TICK_S = 0.05
_LOOK_EVERY = 10


@dataclass
class SimulatedLoad:
    """Sends load to a queue. `problems_in` names the runs, counted from 0, in which the client was late."""

    queue: Queue
    problems_in: frozenset[int] = frozenset()
    rates: list[float] = field(default_factory=list)
    load_s: float = 0.0

    def __call__(self, rate_per_s: float, duration_s: float, seed: int, watch: Watch | None = None) -> Probe:
        log = next(self.queue.logs(rate_per_s, duration_s, seed=seed, runs=1))
        end_s, overloaded = self._end(log, rate_per_s, duration_s, watch)
        problems = ("the client sent late",) if len(self.rates) in self.problems_in else ()
        self.rates.append(rate_per_s)
        self.load_s += end_s
        return Probe(log=log.between(0, end_s), overloaded=overloaded, problems=problems)

    def _end(
        self, log: RequestLog, rate_per_s: float, duration_s: float, watch: Watch | None
    ) -> tuple[float, bool]:
        rule = BacklogRule(rate_per_s=rate_per_s, limit_ms=self.queue.limit_ms)
        ticks_ns = (np.arange(_TICK_S, duration_s, _TICK_S) * 1e9).astype(int)
        due = np.searchsorted(log.scheduled_ns, ticks_ns)
        in_flight = due - np.searchsorted(np.sort(log.done_ns), ticks_ns)
        for tick, (now_ns, waiting) in enumerate(zip(ticks_ns, in_flight, strict=True), start=1):
            if rule.overloaded(int(now_ns), int(waiting)):
                return now_ns / 1e9, True
            if watch is not None and tick % _LOOK_EVERY == 0:
                seen = self._known_at(log, int(now_ns))
                if len(seen) and watch(seen):
                    return now_ns / 1e9, False
        return duration_s, False

    def _known_at(self, log: RequestLog, now_ns: int) -> RequestLog:
        """Up to the first request that is in flight and not late yet; late ones are in it as unfinished."""
        due = log.rows(0, int(np.searchsorted(log.scheduled_ns, now_ns)))
        in_flight = due.done_ns > now_ns
        young = np.flatnonzero(in_flight & (due.scheduled_ns > now_ns - self.queue.limit_ms * 1e6))
        seen = due.rows(0, int(young[0]) if len(young) else len(due))
        late = seen.done_ns > now_ns
        return replace(
            seen,
            done_ns=np.where(late, now_ns, seen.done_ns),
            outcome=np.where(late, UNFINISHED, seen.outcome).astype(np.uint8),
        )
