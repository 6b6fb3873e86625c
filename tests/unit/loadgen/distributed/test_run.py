"""Workers on other machines as one group: what came of whom, in which order, and who was lost."""

import time
from collections import defaultdict, deque
from dataclasses import replace

import numpy as np
import pytest
from load_records import shard_result

from loadgen.distributed.messages import Order, Report, rows_of
from loadgen.distributed.run import RemoteWorkers
from loadgen.errors import TargetRefused, WorkerDied
from loadgen.measurement.request_log import RequestLog
from loadgen.sending import plan_run
from loadgen.sending.plan_run import LoadJob, LoadRun, PlanRun
from loadgen.spec.plan import Arrivals, LoadPlan, Payload
from loadgen.spec.target import Target

RUN = 7
PLAN = LoadPlan(rate_per_s=100.0, duration_s=1.0, seed=0, arrivals=Arrivals(kind="constant"))
JOB = LoadJob(target=Target(url="http://127.0.0.1:9", model_name="m"), plan=PLAN, payload=Payload(), limit_ms=None)
RESULT = shard_result(rows=50)
AHEAD_NS = {"a": 0, "b": 3_600_000_000_000}
"""How far the clock of a worker is ahead of ours."""
Look = tuple[str, list[tuple[str, Report]]]
"""The workers that are connected, a letter each, and the reports that came, each with its worker."""


class Replay:
    """Workers that answer questions at once, and report what a list says, look after look."""

    def __init__(self, looks: list[Look]) -> None:
        self.started_ns: dict[str, int] = {}
        self._looks = deque(looks)
        self._inbox: dict[str, deque[Report]] = defaultdict(deque)

    @property
    def connected(self) -> list[str]:
        names, reports = self._looks.popleft()
        for worker, report in reports:
            self._inbox[worker].append(report)
        return list(names)

    def give(self, worker: str, order: Order) -> None:
        assert order.run == RUN
        if order.do in ("clock", "prepare", "statistics"):
            self._inbox[worker].append(Report(run=RUN, here_ns=time.monotonic_ns() + AHEAD_NS[worker]))
        elif order.do == "start":
            self.started_ns[worker] = order.origin_ns - AHEAD_NS[worker]

    def take(self, worker: str) -> Report | None:
        waiting = self._inbox[worker]
        return waiting.popleft() if waiting else None


def whole_log() -> RequestLog:
    due_ns = np.arange(100, dtype=np.int64) * 10_000_000
    return RequestLog(
        scheduled_ns=due_ns, sent_ns=due_ns + 1000, done_ns=due_ns + 2_000_000, outcome=np.zeros(100, np.uint8)
    )


def rows(worker: str, start: int, end: int) -> tuple[str, Report]:
    """The rows start..end-1 of worker a, who has the even ones of all, or of b."""
    part = whole_log().part(slice("ab".index(worker), None, 2)).rows(start, end)
    return worker, Report(run=RUN, rows=rows_of(part))


def no_such_outcome() -> Report:
    log = whole_log().part(slice(0, None, 2)).rows(0, 5)
    return Report(run=RUN, rows=rows_of(replace(log, outcome=np.full(5, 250, np.uint8))))


def done(worker: str) -> tuple[str, Report]:
    return worker, Report(run=RUN, result=RESULT)


def workers_of(looks: list[Look]) -> RemoteWorkers:
    return RemoteWorkers(messenger=Replay(looks), run=RUN, workers=["a", "b"], job=JOB)


def execute(looks: list[Look]) -> LoadRun:
    return PlanRun(job=JOB, workers=workers_of(looks), watch=None, gpu=None).execute()


@pytest.fixture(autouse=True)
def looks_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_run, "_LOOK_PERIOD_S", 0.0)


def test_rows_of_a_lost_worker_that_come_late_are_in_the_log_in_the_order_of_the_schedule() -> None:
    """The log has the other worker's requests up to 40 when those of b from 10 to 30 come."""
    looks: list[Look] = [
        ("ab", [rows("a", 0, 20), rows("b", 0, 10)]),
        ("a", [rows("a", 20, 40)]),
        ("a", [rows("b", 10, 30)]),
        ("a", [rows("a", 40, 50), done("a")]),
    ]
    run = execute(looks)
    known = np.r_[np.arange(0, 100, 2), np.arange(1, 60, 2)]
    for name in ("scheduled_ns", "sent_ns", "done_ns", "outcome"):
        assert getattr(run.log, name).tolist() == getattr(whole_log(), name)[np.sort(known)].tolist()
    assert run.measurement.n == 80
    assert run.measurement.problems == ("the worker b was lost: only 30 of its requests are known",)


def test_a_look_shows_only_what_every_worker_has_reported() -> None:
    workers_log: list[int] = []
    looks: list[Look] = [
        ("ab", [rows("a", 0, 20)]),
        ("ab", [rows("b", 0, 5)]),
        ("ab", [rows("b", 5, 50), rows("a", 20, 50), done("a")]),
        ("ab", [done("b")]),
    ]
    workers = workers_of(looks)
    workers.prepare()
    workers.start()
    while workers.wait(0.0):
        workers_log.append(len(workers.log()))
    assert workers_log == [1, 11, 100]
    assert len(workers.log()) == 100


def test_workers_start_at_the_same_moment_each_by_its_own_clock() -> None:
    replay = Replay([])
    workers = RemoteWorkers(messenger=replay, run=RUN, workers=["a", "b"], job=JOB)
    workers.prepare()
    workers.start()
    assert replay.started_ns["a"] > time.monotonic_ns()
    assert abs(replay.started_ns["b"] - replay.started_ns["a"]) < 1_000_000_000


def test_a_run_whose_workers_are_all_lost_says_so() -> None:
    with pytest.raises(WorkerDied, match="every worker was lost"):
        execute([("ab", [rows("a", 0, 20)]), ("a", []), ("", [])])


@pytest.mark.parametrize("wrong", [rows("b", 0, 5), rows("a", 1, 5), ("a", no_such_outcome())])
def test_requests_that_the_plan_does_not_have_end_the_run(wrong: tuple[str, Report]) -> None:
    _, report = wrong
    with pytest.raises(WorkerDied, match="other requests than the plan has"):
        execute([("ab", [("a", report)])])


def test_an_error_that_a_worker_reports_ends_the_run() -> None:
    failure = Report(run=RUN, failure=("TargetRefused", "no such model.\nLoad it."))
    with pytest.raises(TargetRefused, match="no such model"):
        execute([("ab", [("b", failure)])])


def test_reports_of_an_earlier_run_are_passed_over() -> None:
    worker, report = rows("a", 0, 20)
    looks: list[Look] = [
        ("ab", [(worker, report.model_copy(update={"run": RUN - 1})), rows("a", 0, 50), rows("b", 0, 50)]),
        ("ab", [done("a"), done("b")]),
    ]
    assert execute(looks).measurement.n == 100
