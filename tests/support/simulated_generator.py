"""Simulate a load generator in virtual time: a queue with a fixed service time behind a perfect client."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from load_records import shard_result
from numpy.typing import NDArray

from loadgen.errors import TargetRefused, TargetUnreachable
from loadgen.measurement.request_log import RequestLog
from loadgen.measurement.result import measurement_of
from loadgen.measurement.server_stats import ServerTimings
from loadgen.sending.generator import Generator
from loadgen.sending.plan_run import LoadRun
from loadgen.spec.plan import ClosedLoopPlan, LoadPlan, Payload
from loadgen.spec.target import Target
from loadgen.traffic.arrivals import schedule

if TYPE_CHECKING:
    from collections.abc import Callable

_WATCH_EVERY_NS = 500_000_000


@dataclass
class SimulatedGenerator(Generator):
    """Serves one request after the other, each for `service_ms` (first come, first served), then `delay_ms` more.

    `failing` is the share of requests that fail with http 503, `send_lag_ms` the send lag of every request.
    A request after 200 ms of silence takes `idle_ms` more. `in_front` and `server`: see `Measurement`.
    The first `cold_runs`
    with a limit meet first executions: each of their requests takes 300 ms more.
    The server answers no question before the runs numbered in `unanswered`.
    `plans` records the requested plans. A model named `absent` is refused.
    """

    service_ms: float = 0.0
    delay_ms: float = 0.0
    failing: float = 0.0
    idle_ms: float = 0.0
    send_lag_ms: float = 0.0
    cold_runs: int = 0
    in_front: tuple[str, ...] = ()
    server: ServerTimings | None = None
    unanswered: range = range(0)
    plans: list[LoadPlan | ClosedLoopPlan] = field(default_factory=list)

    def run(
        self,
        target: Target,
        plan: LoadPlan | ClosedLoopPlan,
        *,
        payload: Payload | None = None,
        limit_ms: float | None = None,
        watch: Callable[[RequestLog], bool] | None = None,
    ) -> LoadRun:
        if target.model_name == "absent":
            raise TargetRefused("absent is not loaded.\nLoad it.")
        self.plans.append(plan)
        if len(self.plans) in self.unanswered:
            raise TargetUnreachable(f"no whole answer within 10 s to {dict(target.headers)}.\nStart it.")
        log = self._log(plan)
        cold = limit_ms is not None and self.cold_runs > 0
        self.cold_runs -= cold
        log = replace(log, done_ns=log.done_ns + cold * 300_000_000)
        stopped = False
        for now_ns in range(_WATCH_EVERY_NS, round(plan.duration_s * 1e9), _WATCH_EVERY_NS):
            waiting = np.flatnonzero((log.scheduled_ns >= now_ns) | (log.done_ns > now_ns))
            known = log.rows(0, int(waiting[0]) if len(waiting) else len(log))
            if watch is not None and watch(known):
                log = log.between(0.0, now_ns / 1e9)
                stopped = True
                break
        measurement = measurement_of(
            log,
            plan,
            [shard_result(error_example=f"http 503: you sent {dict(target.headers)}" if self.failing else None)],
            limit_ms=limit_ms,
            stopped=stopped,
            server=self.server,
        )
        in_front = (*self.in_front, *measurement.in_front)
        measurement = replace(measurement, cold="new shapes" if cold else "", in_front=in_front)
        return LoadRun(log=log, measurement=measurement, stopped="watch" if stopped else None)

    def _log(self, plan: LoadPlan | ClosedLoopPlan) -> RequestLog:
        due = self._closed(plan) if isinstance(plan, ClosedLoopPlan) else schedule(plan)
        rng = np.random.default_rng(plan.seed)
        sent = due + round(self.send_lag_ms * 1e6)
        service = round(self.service_ms * 1e6)
        steps = np.arange(len(due), dtype=np.int64) * service
        started = np.maximum.accumulate(sent - steps) + steps if len(due) else sent
        idle = np.diff(due, prepend=-1_000_000_000) > 200_000_000
        return RequestLog(
            scheduled_ns=due,
            sent_ns=sent,
            done_ns=started + service + round(self.delay_ms * 1e6) + 1000 + idle * round(self.idle_ms * 1e6),
            outcome=np.where(rng.random(len(due)) < self.failing, 103, 0).astype(np.uint8),
        )

    def _closed(self, plan: ClosedLoopPlan) -> NDArray[Any]:
        """Users send again as soon as they have their response; the server takes one request at a time."""
        turn_s = max(1e-3, (self.service_ms * plan.concurrency + self.delay_ms) / 1e3)
        times = np.arange(0.0, plan.duration_s, turn_s)
        return np.sort(np.repeat(np.rint(times * 1e9).astype(np.int64), plan.concurrency))
