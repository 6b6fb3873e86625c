"""Locust hears of every request once, with its latency from the time it was due, and while no request is due."""

import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from loadgen.sending.request_table import LogTable, own_table
from loadgen.wire.poller import READ

with pytest.MonkeyPatch.context() as patched:
    # Locust replaces parts of the standard library unless told not to: the other tests of this process need them.
    patched.setenv("LOCUST_SKIP_MONKEY_PATCH", "1")
    from locust.env import Environment
    from locust.exception import StopUser

    from loadgen.sending.locust_user import METHOD, GapPoller, OpenLoopUser, RequestEvents

MS = 1_000_000
HOUR = 3600 * 1000 * MS


class Heard:
    """A user in an environment whose Locust keeps statistics, and the events that a plug-in gets."""

    def __init__(self) -> None:
        environment = Environment(user_classes=[OpenLoopUser])
        self.runner = environment.create_local_runner()
        self.stats = environment.stats
        self.user = OpenLoopUser(environment)
        self.events: list[dict[str, Any]] = []
        environment.events.request.add_listener(lambda **event: self.events.append(event))  # type: ignore[no-untyped-call]

    def of(self, table: LogTable) -> RequestEvents:
        return RequestEvents(self.user, table, name="m")


@pytest.fixture
def heard() -> Iterator[Heard]:
    heard = Heard()
    yield heard
    heard.runner.quit()


def sent(*latencies_ms: int, lag_ms: int = 0) -> LogTable:
    """Requests that were due every 10 ms; one with a latency of 0 has no end."""
    table = own_table(len(latencies_ms))
    table.scheduled_ns[:] = np.arange(table.rows) * 10 * MS
    table.sent_ns[:] = table.scheduled_ns + max(1, lag_ms * MS)
    for row, latency_ms in enumerate(latencies_ms):
        table.done_ns[row] = table.scheduled_ns[row] + latency_ms * MS if latency_ms else 0
    return table


def test_each_request_is_one_event_with_its_latency_from_the_scheduled_time(heard: Heard) -> None:
    table = sent(5, 7, 55, 56, lag_ms=4)
    table.outcome[3] = 1
    events = heard.of(table)
    events.take(15 * MS)  # two were due
    while events.fire():
        pass
    assert [event["response_time"] for event in heard.events] == [5, 7]
    events.finish(100 * MS)
    assert [event["response_time"] for event in heard.events] == [5, 7, 55, 56]
    assert [event["exception"] is None for event in heard.events] == [True, True, True, False]
    starts_s = [event["start_time"] for event in heard.events]
    assert np.diff(starts_s)[[0, 2]] == pytest.approx(0.01, abs=1e-6)  # of those that were taken together
    for entry in (heard.stats.entries["m", METHOD], heard.stats.total):
        assert (entry.num_requests, entry.num_failures) == (4, 1)
        assert (entry.min_response_time, entry.max_response_time) == (5, 56)
        assert entry.response_times == {5: 1, 7: 1, 55: 1, 56: 1}
    (error,) = heard.stats.errors.values()
    assert error.occurrences == 1


def test_no_request_is_fired_before_an_earlier_one_has_ended(heard: Heard) -> None:
    table = sent(5, 0, 5)
    events = heard.of(table)
    events.take(60 * MS)
    assert (events.fire(), events.fire()) == (True, False)
    table.done_ns[1] = 70 * MS
    events.take(80 * MS)
    assert (events.fire(), events.fire(), events.fire()) == (True, True, False)
    assert [event["response_time"] for event in heard.events] == [5, 60, 5]


def test_a_request_in_flight_when_locust_ends_the_user_has_failed(heard: Heard) -> None:
    table = sent(5, 0, 5)
    heard.of(table).finish(100 * MS)
    assert [event["response_time"] for event in heard.events] == [5, 90, 5]
    assert [event["exception"] is not None for event in heard.events] == [False, True, False]


def test_many_requests_that_wait_are_all_fired_at_the_end(heard: Heard) -> None:
    heard.of(sent(*[5] * 5001)).finish(100_000 * MS)
    assert len(heard.events) == heard.stats.total.num_requests == 5001


def test_a_listener_that_ends_the_test_does_not_lose_the_events_after_it(heard: Heard) -> None:
    def end_it(**_: Any) -> None:
        raise StopUser

    heard.user.environment.events.request.add_listener(end_it)
    events = heard.of(sent(5, 5, 5))
    events.finish(100 * MS)
    assert len(heard.events) == 3
    assert isinstance(events.order, StopUser)


class WorkedError(Exception):
    """Ends a wait by its first piece of work."""


def test_work_is_done_in_long_waits_only() -> None:
    def work() -> bool:
        raise WorkedError

    poller = GapPoller(work)
    assert poller.wait(0) == poller.wait(10_000) == []
    poller.sleep(10e-6)
    with pytest.raises(WorkedError):
        poller.wait(HOUR)
    with pytest.raises(WorkedError):
        poller.sleep(3600.0)
    poller.close()


@pytest.mark.parametrize("more", [True, False])
def test_a_response_ends_the_work_and_the_wait(more: bool) -> None:
    calls = 0

    def work() -> bool:
        nonlocal calls
        calls += 1
        if calls == 3:
            theirs.send(b"x")
        return more or calls < 3

    ours, theirs = socket.socketpair()
    poller = GapPoller(work)
    with ours, theirs:
        poller.add(ours.fileno(), READ)
        ((fd, _),) = poller.wait(HOUR)
        assert (fd, calls) == (ours.fileno(), 3)
        assert poller.wait(HOUR) != []
    assert calls == 3
    poller.close()
