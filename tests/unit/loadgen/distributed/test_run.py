"""Workers on other machines as one group: what came of whom, in which order, and who was lost."""

from collections import defaultdict, deque
from typing import Any

import numpy as np
import pytest

from loadgen.distributed import messages as kinds
from loadgen.distributed.messages import Message
from loadgen.distributed.run import RemoteWorkers
from loadgen.errors import TargetRefused, WorkerDied
from loadgen.measurement.request_log import RequestLog
from loadgen.sending import plan_run
from loadgen.sending.plan_run import LoadJob, LoadRun, PlanRun
from loadgen.spec.plan import Arrivals, LoadPlan, Payload
from loadgen.spec.target import Target

RUN = 7
PLAN = LoadPlan(rate_per_s=100.0, duration_s=1.0, seed=0, arrivals=Arrivals(kind="constant"))
RESULT = {
    "rows": 50,
    "overloaded": False,
    "wall_s": 1.0,
    "cpu_s": 0.1,
    "bytes_sent": 1,
    "bytes_received": 1,
    "connections_opened": 0,
    "error_example": None,
}
Look = tuple[str, list[tuple[str, str, Message]]]
"""The workers that are connected, a letter each, and the messages that came: kind, worker, content."""


class Replay:
    """Workers that answer questions at once, and report what a list says, look after look."""

    def __init__(self, looks: list[Look]) -> None:
        self._looks = deque(looks)
        self._inbox: dict[tuple[str, str], deque[Message]] = defaultdict(deque)
        self.sent: list[tuple[str, str]] = []

    @property
    def connected(self) -> list[str]:
        names, messages = self._looks.popleft()
        for kind, worker, message in messages:
            self._inbox[kind, worker].append({"run": RUN, **message})
        return list(names)

    def send(self, kind: str, worker: str, message: Message) -> None:
        assert message["run"] == RUN
        self.sent.append((kind, worker))

    def receive(self, kind: str, worker: str) -> Message | None:
        waiting = self._inbox[kind, worker]
        return waiting.popleft() if waiting else None

    def wait_for(self, kind: str, worker: str, timeout_s: float) -> Message:
        answers: dict[str, dict[str, Any]] = {kinds.CLOCK: {"here_ns": 5}, kinds.STATISTICS: {"statistics": None}}
        return {"run": RUN, **answers.get(kind, {})}


def whole_log() -> RequestLog:
    due_ns = np.arange(100, dtype=np.int64) * 10_000_000
    return RequestLog(
        scheduled_ns=due_ns, sent_ns=due_ns + 1000, done_ns=due_ns + 2_000_000, outcome=np.zeros(100, np.uint8)
    )


def rows(worker: str, start: int, end: int) -> tuple[str, str, Message]:
    """The rows start..end-1 of worker a, who has the even ones of all, or of b."""
    part = whole_log().part(slice("ab".index(worker), None, 2)).rows(start, end)
    return kinds.ROWS, worker, {"rows": kinds.rows_to_message(part)}


def done(worker: str) -> tuple[str, str, Message]:
    return kinds.DONE, worker, {"result": RESULT}


def execute(looks: list[Look]) -> LoadRun:
    job = LoadJob(
        target=Target(url="http://127.0.0.1:9", model_name="m"),
        plan=PLAN,
        payload=Payload(),
        limit_ms=None,
    )
    workers = RemoteWorkers(messenger=Replay(looks), run=RUN, workers=["a", "b"], job=job)
    return PlanRun(job=job, workers=workers, watch=None, gpu=None).execute()


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
    job = LoadJob(
        target=Target(url="http://127.0.0.1:9", model_name="m"),
        plan=PLAN,
        payload=Payload(),
        limit_ms=None,
    )
    workers = RemoteWorkers(messenger=Replay(looks), run=RUN, workers=["a", "b"], job=job)
    workers.prepare()
    workers.start()
    while workers.wait(0.0):
        workers_log.append(len(workers.log()))
    assert workers_log == [1, 11, 100]
    assert len(workers.log()) == 100


def test_a_run_whose_workers_are_all_lost_says_so() -> None:
    with pytest.raises(WorkerDied, match="every worker was lost"):
        execute([("ab", [rows("a", 0, 20)]), ("a", []), ("", [])])


@pytest.mark.parametrize("wrong", [rows("b", 0, 5), rows("a", 1, 5)])
def test_requests_that_the_plan_does_not_have_end_the_run(wrong: tuple[str, str, Message]) -> None:
    _, _, message = wrong
    with pytest.raises(WorkerDied, match="other requests than the plan has"):
        execute([("ab", [(kinds.ROWS, "a", message)])])


def test_an_error_that_a_worker_reports_ends_the_run() -> None:
    failure = (kinds.FAILED, "b", {"error": "TargetRefused", "text": "no such model.\nLoad it."})
    with pytest.raises(TargetRefused, match="no such model"):
        execute([("ab", [failure])])


def test_messages_of_an_earlier_run_are_passed_over() -> None:
    kind, worker, message = rows("a", 0, 20)
    looks: list[Look] = [
        ("ab", [(kind, worker, {**message, "run": RUN - 1}), rows("a", 0, 50), rows("b", 0, 50)]),
        ("ab", [done("a"), done("b")]),
    ]
    assert execute(looks).measurement.n == 100
