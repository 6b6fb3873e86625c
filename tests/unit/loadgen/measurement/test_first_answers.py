"""First executions of shapes, told from the course of a run on simulated instances."""

import heapq
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from virtual_server import MS, VirtualProcess, VirtualServer

from loadgen.measurement.first_answers import Turn, turn_of
from loadgen.measurement.request_log import RequestLog
from loadgen.sending.generator import LoadGenerator
from loadgen.spec.plan import LoadPlan
from loadgen.spec.target import Target
from loadgen.traffic.arrivals import schedule

TARGET = Target(url="http://127.0.0.1:9", model_name="m")
PLAN = LoadPlan(rate_per_s=100.0, duration_s=20.0, seed=1, timeout_s=30.0)


class Instances:
    """First come, first served by `count` instances; each takes `cold_ms` for a shape that is new to it."""

    def __init__(
        self, count: int, turn: Sequence[int], *, cold_ms: float, warm_ms: Callable[[int], float]
    ) -> None:
        self._free = [(0, number) for number in range(count)]
        self._known: set[tuple[int, int]] = set()
        self._turn, self._cold_ms, self._warm_ms = turn, cold_ms, warm_ms

    def done_ns(self, row: int, now_ns: int) -> int:
        shape = self._turn[row % len(self._turn)]
        free_ns, number = heapq.heappop(self._free)
        known = (shape, number) in self._known or not self._cold_ms
        self._known.add((shape, number))
        done_ns = max(now_ns, free_ns) + round(1e6 * (self._warm_ms(shape) if known else self._cold_ms))
        heapq.heappush(self._free, (done_ns, number))
        return done_ns


def run_on(instances: Instances, turn: Turn) -> Any:
    server = VirtualServer(lambda row: instances.done_ns(row, server.now_ns) - server.now_ns)
    server.turn = turn
    with LoadGenerator(start=lambda: VirtualProcess(server)) as generator:  # type: ignore[return-value,arg-type]
        return generator.run(TARGET, PLAN, limit_ms=50.0)


@pytest.mark.parametrize("count", [1, 2])
def test_a_server_that_executes_each_shape_for_a_first_time_is_not_overloaded(count: int) -> None:
    turn = Turn(shapes=range(24), instances=count)
    run = run_on(Instances(count, turn.shapes, cold_ms=300.0, warm_ms=lambda _: 3.0), turn)
    assert run.stopped is None
    assert run.measurement.n == len(schedule(PLAN))
    assert "24 shapes for the first time" in run.measurement.cold
    assert any("--warmup" in remark for remark in run.measurement.remarks)


@pytest.mark.parametrize("shapes", [1, 24])
def test_a_server_that_stays_as_slow_is_overloaded(shapes: int) -> None:
    turn = Turn(shapes=range(shapes))
    run = run_on(Instances(1, turn.shapes, cold_ms=0.0, warm_ms=lambda _: 20.0), turn)
    assert (run.stopped, run.measurement.cold) == ("overloaded", "")
    assert run.measurement.duration_s < 2.0


def test_a_server_that_is_too_slow_is_overloaded_once_its_shapes_are_known() -> None:
    turn = Turn(shapes=range(8))
    run = run_on(Instances(1, turn.shapes, cold_ms=500.0, warm_ms=lambda _: 20.0), turn)
    assert run.stopped == "overloaded"
    assert 4.0 < run.measurement.duration_s < 10.0


def log_of(instances: Instances) -> RequestLog:
    due_ns = schedule(PLAN)
    done_ns = np.array([instances.done_ns(row, int(due)) for row, due in enumerate(due_ns)])
    return RequestLog(
        scheduled_ns=due_ns, sent_ns=due_ns, done_ns=done_ns, outcome=np.zeros(len(due_ns), np.uint8)
    )


@pytest.mark.parametrize(("cold_ms", "waited_for"), [(1800.0, True), (200.0, False)])
def test_first_answers_are_waited_for_as_long_as_they_take(cold_ms: float, waited_for: bool) -> None:
    """At 5 s: the third of the slow ones is due; the quick ones were all over in the first second."""
    turn, now_ns = Turn(shapes=range(4)), 5_000 * MS
    log = log_of(Instances(1, turn.shapes, cold_ms=cold_ms, warm_ms=lambda _: 20.0))
    log.done_ns[log.done_ns > now_ns] = 0
    assert turn.still_getting_faster(log, now_ns) == waited_for


def test_long_shapes_that_are_rare_are_not_first_executions() -> None:
    turn = Turn(shapes=[0, 1] * 20 + [2, 3, 4, 5])
    log = log_of(Instances(1, turn.shapes, cold_ms=0.0, warm_ms=lambda shape: 2.0 if shape < 2 else 40.0))
    assert turn.cold(log) == ""


def test_a_pause_of_the_machine_is_no_first_execution() -> None:
    turn = Turn(shapes=range(8))
    log = log_of(Instances(1, turn.shapes, cold_ms=0.0, warm_ms=lambda _: 1.0))
    log.done_ns[0] += 200 * MS
    assert turn.cold(log) == ""


def test_answers_of_one_shape_that_come_faster_and_faster_are_waited_for() -> None:
    done_ns = np.cumsum(np.linspace(80, 5, 60) * MS).astype(np.int64)
    due_ns = np.arange(60, dtype=np.int64) * MS
    log = RequestLog(scheduled_ns=due_ns, sent_ns=due_ns, done_ns=done_ns, outcome=np.zeros(60, np.uint8))
    assert Turn().still_getting_faster(log, int(done_ns[-1]))
    assert not Turn().still_getting_faster(log, int(3 * done_ns[-1]))  # they came faster, and stopped


def test_shapes_are_numbered_in_the_order_in_which_they_come() -> None:
    turn = turn_of([[(1, 7), (1,)], [(1, 9), (1,)], [(1, 7), (1,)]], instances=3)
    assert turn == Turn(shapes=[0, 1, 0], instances=3)
