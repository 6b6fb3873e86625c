"""One run of a plan over any group of workers: when it looks, why it stops, and what it leaves behind."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from load_records import shard_result

from loadgen.errors import WorkerDied
from loadgen.measurement.request_log import RequestLog
from loadgen.measurement.result import ShardResult
from loadgen.sending import plan_run
from loadgen.sending.plan_run import LoadJob, PlanRun, Watch
from loadgen.spec.plan import Arrivals, LoadPlan, Payload
from loadgen.spec.target import Target

JOB = LoadJob(
    target=Target(url="http://127.0.0.1:9", model_name="m"),
    plan=LoadPlan(rate_per_s=100.0, duration_s=0.3, seed=0),
    payload=Payload(),
    limit_ms=50.0,
)


def log_of(n: int) -> RequestLog:
    due_ns = np.arange(n, dtype=np.int64) * 10_000_000
    return RequestLog(
        scheduled_ns=due_ns, sent_ns=due_ns + 1000, done_ns=due_ns + 1_000_000, outcome=np.zeros(n, np.uint8)
    )


class TenPerWait:
    """Workers that send ten requests in each `wait`, 30 in all, and overload the server if asked to."""

    def __init__(self, *, overloaded: bool = False, fails_in: str = "") -> None:
        self.overloaded, self.fails_in = overloaded, fails_in
        self.losses: tuple[str, ...] = ()
        self.calls: list[str] = []
        self.results: list[ShardResult] = []
        self._waits = 0

    def _note(self, call: str) -> None:
        self.calls.append(call)
        if call == self.fails_in:
            raise WorkerDied("it died.\nStart again.")

    def prepare(self) -> None:
        self._note("prepare")

    def read_statistics(self) -> dict[str, Any] | None:
        self._note("statistics")
        return None

    def start(self) -> None:
        self._note("start")

    def wait(self, timeout_s: float) -> bool:
        assert 0 <= timeout_s <= 0.5
        self._note("wait")
        self._waits += 1
        if self._waits < 3 and not self.overloaded:
            return True
        self.results = [shard_result(rows=10 * self._waits, overloaded=self.overloaded)]
        return False

    def log(self) -> RequestLog:
        return log_of(10 * self._waits)

    def stop(self) -> None:
        self._note("stop")

    def abandon(self) -> None:
        self._note("abandon")


def run_of(workers: TenPerWait, *, watch: Watch | None = None) -> PlanRun:
    return PlanRun(job=JOB, workers=workers, watch=watch, gpu=None)


@pytest.fixture
def looks_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_run, "_LOOK_PERIOD_S", 0.0)


@pytest.mark.usefixtures("looks_each_time")
def test_a_watch_sees_the_log_grow_and_the_end_has_all() -> None:
    seen: list[int] = []

    def watch(log: RequestLog) -> bool:
        seen.append(len(log))
        return False

    run = run_of(TenPerWait(), watch=watch).execute()
    assert seen[0] == 10
    assert seen == sorted(seen)
    assert run.log.scheduled_ns.tolist() == log_of(30).scheduled_ns.tolist()


@pytest.mark.usefixtures("looks_each_time")
def test_a_watch_that_says_so_stops_the_workers_once_and_is_asked_no_more() -> None:
    workers, seen = TenPerWait(), list[int]()

    def watch(log: RequestLog) -> bool:
        seen.append(len(log))
        return True

    run = run_of(workers, watch=watch).execute()
    assert (seen, workers.calls.count("stop"), run.stopped) == ([10], 1, "watch")


@pytest.mark.usefixtures("looks_each_time")
def test_a_slow_watch_takes_a_tenth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes 10 s, so it is not asked again in the seconds of this run."""
    now_s, seen = [0.0], list[int]()
    monkeypatch.setattr(plan_run, "time", SimpleNamespace(monotonic=lambda: now_s[0]))

    def watch(log: RequestLog) -> bool:
        now_s[0] += 10.0
        seen.append(len(log))
        return False

    run_of(TenPerWait(), watch=watch).execute()
    assert seen == [10]


def test_workers_that_overload_the_server_stop_the_others() -> None:
    workers = TenPerWait(overloaded=True)
    run = run_of(workers).execute()
    assert (run.stopped, workers.calls.count("stop")) == ("overloaded", 1)


@pytest.mark.parametrize("call", ["prepare", "statistics", "start", "wait"])
def test_a_run_that_fails_leaves_the_workers_ready_for_the_next(call: str) -> None:
    workers = TenPerWait(fails_in=call)
    with pytest.raises(WorkerDied):
        run_of(workers).execute()
    assert workers.calls[-1] == "abandon"


def test_a_lost_worker_is_a_problem_of_the_measurement() -> None:
    workers = TenPerWait()
    workers.losses = ("the worker b was lost",)
    assert run_of(workers).execute().measurement.problems == ("the worker b was lost",)


TAILED = replace(
    JOB,
    plan=LoadPlan(rate_per_s=100.0, duration_s=0.15, tail_s=0.15, seed=0, arrivals=Arrivals(kind="constant")),
)


@pytest.mark.usefixtures("looks_each_time")
def test_of_a_tailed_load_that_is_stopped_what_ends_without_load_is_left_out() -> None:
    workers = TenPerWait()
    run = PlanRun(job=TAILED, workers=workers, watch=lambda log: len(log) == 10, gpu=None).execute()
    assert (len(run.log), run.stopped, workers.calls.count("stop")) == (10, "watch", 1)


@pytest.mark.usefixtures("looks_each_time")
def test_the_load_goes_on_until_all_that_is_measured_has_ended_and_the_rest_is_left_out() -> None:
    """15 requests are measured; 10 more are known at each look."""
    workers = TenPerWait()
    run = PlanRun(job=TAILED, workers=workers, watch=None, gpu=None).execute()
    assert workers.calls[-5:] == ["wait", "wait", "stop", "wait", "statistics"]
    assert len(run.log) == 15
    assert (run.measurement.n, run.stopped) == (15, None)
