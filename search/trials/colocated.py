"""Loads of other models of the same server, which are sent while one is measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Self

import numpy as np

from loadgen.measurement.request_log import RequestLog
from loadgen.measurement.send_lag import stop_when_late
from loadgen.sending.generator import LoadGenerator
from loadgen.sending.plan_run import LoadRun
from loadgen.spec.limits import Colocated
from loadgen.spec.plan import ClosedLoopPlan, LoadPlan, Payload
from loadgen.spec.target import Target
from loadgen.statistics.probe import Watch

BEFORE_NS = 1_000_000_000
"""A colocated log counts from a second before the first look at a run, which is the least that is never judged."""

LONGER_S = 30.0
"""The plan of a colocated load is this much longer than the run beside it, which ends it."""

SEED = 32_452_843
"""Between the seeds of two loads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColocatedLoad:
    """Poisson requests to one other model. A backlog of three times `limit_ms`, and rising, is an overload.

    `processes` send them.
    """

    model: Colocated
    limit_ms: float
    payload: Payload
    processes: int = 1


@dataclass(slots=True)
class Beside:
    """The colocated loads of one run: what their logs are so far, and at the end."""

    runs: dict[str, Future[LoadRun]] = field(default_factory=dict)
    logs: dict[str, RequestLog] = field(default_factory=dict)
    from_ns: dict[str, int] = field(default_factory=dict)
    """Where each log counts from, on its own clock: a second before the first look at the run."""

    until_ns: int = 0
    """When the run ended, on the monotonic clock."""

    def watching(self, watch: Watch | None) -> Watch | None:
        """Return a watch that sees the colocated logs, too, and ends a run when a colocated load has ended."""
        if not self.runs:
            return watch

        def joint(log: RequestLog) -> bool:
            if any(run.done() for run in self.runs.values()):
                return True
            if not self.from_ns:
                # A run's client may prepare for seconds, in which nobody disturbs the others.
                ends_ns = {
                    name: int(seen.scheduled_ns[-1]) if len(seen) else 0 for name, seen in self.logs.items()
                }
                self.from_ns = {name: max(0, end_ns - BEFORE_NS) for name, end_ns in ends_ns.items()}
            seen = {name: self._counted(name, seen) for name, seen in self.logs.items()}
            return watch is not None and watch(replace(log, colocated=seen))

        return joint

    def joined(self, run: LoadRun, duration_s: float) -> LoadRun:
        """Return a run of at most `duration_s` with the colocated logs until its end, and their clients' problems.

        They begin before the run, so that their warm-up is over early: as its watch saw them. If one of them was
        overloaded, the run was.
        """
        if not self.runs:
            return run
        logs, measurement = {}, run.measurement
        problems, cold, stopped = list(measurement.problems), measurement.cold, run.stopped
        end_ns = min(self.until_ns, run.began_ns + round(duration_s * 1e9))
        for name, future in self.runs.items():
            other = future.result()
            self.from_ns.setdefault(name, max(0, run.began_ns - other.began_ns - BEFORE_NS))
            logs[name] = self._counted(name, other.log.between(0.0, (end_ns - other.began_ns) / 1e9))
            problems += [f"{name}: {problem}" for problem in other.measurement.problems]
            cold = cold or other.measurement.cold
            stopped = "overloaded" if other.stopped == "overloaded" else stopped
        return replace(
            run,
            log=replace(run.log, colocated=logs),
            measurement=replace(measurement, problems=tuple(problems), cold=cold),
            stopped=stopped,
        )

    def _counted(self, name: str, log: RequestLog) -> RequestLog:
        from_ns = self.from_ns[name]
        return log.rows(int(np.searchsorted(log.scheduled_ns, from_ns)), len(log)).shifted(-from_ns)


class ColocatedLoads:
    """The loads, each with load processes and a thread of its own, from `with` to the end of its block."""

    def __init__(
        self, loads: Sequence[ColocatedLoad] = (), generator: Callable[[int], LoadGenerator] = LoadGenerator
    ) -> None:
        self._loads = loads
        self._new_generator = generator
        self._stack = ExitStack()
        self._senders: list[_Sender] = []

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the models."""
        return tuple(load.model.model for load in self._loads)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._senders = [stack.enter_context(_Sender(load, self._new_generator)) for load in self._loads]
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._senders = []
        self._stack.close()

    @contextmanager
    def sent(self, target: Target, plan: LoadPlan | ClosedLoopPlan) -> Iterator[Beside]:
        """Send the loads until the block ends; it begins when all are under way.

        Raises LoadError at its end if a colocated model could not be sent its load.
        """
        beside, ended = Beside(), Event()
        try:
            under_way = [
                sender.send(target, plan, seed=plan.seed + SEED * number, beside=beside, ended=ended)
                for number, sender in enumerate(self._senders, start=1)
            ]
            for began in under_way:
                began.wait()
            yield beside
        finally:
            beside.until_ns = time.monotonic_ns()
            ended.set()
            failures = [run.exception() for run in beside.runs.values()]
        for failure in filter(None, failures):
            raise failure


class _Sender:
    """The load processes of one load, and the thread that starts and runs them: they die with it."""

    def __init__(self, load: ColocatedLoad, generator: Callable[[int], LoadGenerator]) -> None:
        self._load = load
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._generator = generator(load.processes)

    def __enter__(self) -> Self:
        self._thread.submit(self._generator.__enter__).result()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.submit(self._generator.__exit__, None, None, None)
        self._thread.shutdown()

    def send(
        self, target: Target, plan: LoadPlan | ClosedLoopPlan, *, seed: int, beside: Beside, ended: Event
    ) -> Event:
        """Start the load; return an event for when it is under way, or has failed."""
        load, began = self._load, Event()
        name = load.model.model
        own_plan = LoadPlan(
            rate_per_s=load.model.rate_per_s,
            duration_s=plan.duration_s + plan.timeout_s + LONGER_S,
            seed=seed,
            timeout_s=plan.timeout_s,
            most_send_lag_ms=plan.most_send_lag_ms,
        )

        def look(log: RequestLog) -> bool:
            beside.logs[name] = log
            began.set()
            return ended.is_set()

        run = beside.runs[name] = self._thread.submit(
            self._generator.run,
            replace(target, model_name=name, metrics_url=None),
            own_plan,
            payload=load.payload,
            limit_ms=load.limit_ms,
            watch=stop_when_late(look, own_plan, load.limit_ms),
        )
        run.add_done_callback(lambda _: began.set())
        return began
