"""Workers on other machines as one group: what came of whom, in which order, and who was lost."""

import time
from dataclasses import replace

import numpy as np
import pytest
from load_records import shard_result

from loadgen.distributed.messages import Order, Report, rows_of
from loadgen.distributed.remote_workers import RemoteWorkers
from loadgen.errors import TargetRefused, WorkerDied
from loadgen.measurement.request_log import RequestLog
from loadgen.sending import plan_run
from loadgen.sending.plan_run import LoadJob, LoadRun, PlanRun
from loadgen.spec.plan import Arrivals, LoadPlan, Payload
from loadgen.spec.target import Target

PLAN = LoadPlan(rate_per_s=100.0, duration_s=1.0, seed=0, arrivals=Arrivals(kind="constant"))
JOB = LoadJob(target=Target(url="http://127.0.0.1:9", model_name="m"), plan=PLAN, payload=Payload(), limit_ms=None)
RESULT = shard_result(rows=50)
AHEAD_NS = {"a": 0, "b": 3_600_000_000_000}
"""How far the clock of a worker is ahead of ours."""
Looks = dict[str, list[Report | None]]
"""What each worker reports, look after look; None: it is lost."""


class Replay:
    """Workers that answer questions at once, and report what a list says."""

    def __init__(self, looks: Looks) -> None:
        self.orders: dict[str, list[Order]] = {name: [] for name in "ab"}
        self._looks = {worker: iter(reports) for worker, reports in looks.items()}

    def ask(self, worker: str, order: Order, within_s: float) -> Report | None:
        assert within_s > 0
        self.orders[worker].append(order)
        if order.do == "look":
            return next(self._looks[worker])
        return Report(here_ns=time.monotonic_ns() + AHEAD_NS[worker])


def whole_log() -> RequestLog:
    due_ns = np.arange(100, dtype=np.int64) * 10_000_000
    return RequestLog(
        scheduled_ns=due_ns, sent_ns=due_ns + 1000, done_ns=due_ns + 2_000_000, outcome=np.zeros(100, np.uint8)
    )


def rows(worker: str, start: int, end: int, *, done: bool = False) -> Report:
    """The rows start..end-1 of worker a, who has the even ones of all, or of b; with the result if `done`."""
    part = whole_log().part(slice("ab".index(worker), None, 2)).rows(start, end)
    return Report(rows=rows_of(part), result=RESULT if done else None)


def no_such_outcome() -> Report:
    log = whole_log().part(slice(0, None, 2)).rows(0, 5)
    return Report(rows=rows_of(replace(log, outcome=np.full(5, 250, np.uint8))))


def workers_of(replay: Replay) -> RemoteWorkers:
    return RemoteWorkers(ask=replay.ask, workers=["a", "b"], job=JOB)


def execute(looks: Looks) -> LoadRun:
    return PlanRun(job=JOB, workers=workers_of(Replay(looks)), watch=None, gpu=None).execute()


@pytest.fixture(autouse=True)
def looks_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_run, "_LOOK_PERIOD_S", 0.0)


def test_the_log_has_what_a_lost_worker_had_reported_in_the_order_of_the_schedule() -> None:
    run = execute({"a": [rows("a", 0, 20), rows("a", 20, 50, done=True)], "b": [rows("b", 0, 30), None]})
    known = np.r_[np.arange(0, 100, 2), np.arange(1, 60, 2)]
    for name in ("scheduled_ns", "sent_ns", "done_ns", "outcome"):
        assert getattr(run.log, name).tolist() == getattr(whole_log(), name)[np.sort(known)].tolist()
    assert run.measurement.n == 80
    assert run.measurement.problems == ("the worker b was lost: only 30 of its requests are known",)


def test_a_look_shows_only_what_every_worker_has_reported() -> None:
    workers_log: list[int] = []
    a = [rows("a", 0, 20), rows("a", 20, 20), rows("a", 20, 50, done=True)]
    replay = Replay({"a": [*a], "b": [rows("b", 0, 0), rows("b", 0, 5), rows("b", 5, 50), Report(result=RESULT)]})
    workers = workers_of(replay)
    workers.prepare()
    workers.start()
    while workers.wait(0.0):
        workers_log.append(len(workers.log()))
    assert workers_log == [1, 11, 100]
    assert len(workers.log()) == 100
    assert [order.known for order in replay.orders["b"] if order.do == "look"] == [0, 0, 5, 50]


def test_workers_start_at_the_same_moment_each_by_its_own_clock() -> None:
    replay = Replay({})
    workers = workers_of(replay)
    workers.prepare()
    workers.start()
    a, b = (replay.orders[worker][-1].origin_ns - AHEAD_NS[worker] for worker in "ab")
    assert a > time.monotonic_ns()
    assert abs(a - b) < 1_000_000_000


def test_a_run_whose_workers_are_all_lost_says_so() -> None:
    with pytest.raises(WorkerDied, match="every worker was lost"):
        execute({"a": [rows("a", 0, 20), None], "b": [None]})


@pytest.mark.parametrize("wrong", [rows("b", 0, 5), rows("a", 1, 5), no_such_outcome()])
def test_requests_that_the_plan_does_not_have_end_the_run(wrong: Report) -> None:
    with pytest.raises(WorkerDied, match="other requests than the plan has"):
        execute({"a": [wrong], "b": [rows("b", 0, 5)]})


def test_an_error_that_a_worker_reports_ends_the_run() -> None:
    failure = Report(failure=("TargetRefused", "no such model.\nLoad it."))
    with pytest.raises(TargetRefused, match="no such model"):
        execute({"a": [rows("a", 0, 0)], "b": [failure]})
