"""Locust hears of every request once, with its latency from the time it was due."""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from loadgen.measurement.request_log import RequestLog

with pytest.MonkeyPatch.context() as patched:
    # Locust replaces parts of the standard library unless told not to: the other tests of this process need them.
    patched.setenv("LOCUST_SKIP_MONKEY_PATCH", "1")
    from locust.env import Environment
    from locust.exception import StopUser

    from loadgen.triton_user import RequestEvents, TritonHttpUser

MS = 1_000_000


class Heard:
    """A user in an environment whose Locust keeps statistics, and the events that a plug-in gets."""

    def __init__(self) -> None:
        environment = Environment(user_classes=[TritonHttpUser])
        self.runner = environment.create_local_runner()
        self.stats = environment.stats
        self.request = environment.events.request
        self.sent = RequestEvents(TritonHttpUser(environment), name="m")
        self.events: list[dict[str, Any]] = []
        self.request.add_listener(lambda **event: self.events.append(event))  # type: ignore[no-untyped-call]

    def fire(self, log: RequestLog) -> None:
        while self.sent.fire(log, time.monotonic_ns() - 1000 * MS):
            pass


@pytest.fixture
def heard() -> Iterator[Heard]:
    heard = Heard()
    yield heard
    heard.runner.quit()


def sent(*latencies_ms: int) -> RequestLog:
    """Requests that were due every 10 ms and left 4 ms late; the fourth failed."""
    due_ns = np.arange(len(latencies_ms), dtype=np.int64) * 10 * MS
    outcome = (np.arange(len(latencies_ms)) == 3).astype(np.uint8)
    done_ns = due_ns + np.array(latencies_ms) * MS
    return RequestLog(scheduled_ns=due_ns, sent_ns=due_ns + 4 * MS, done_ns=done_ns, outcome=outcome)


def test_each_request_of_a_growing_log_is_one_event_with_its_latency_from_the_scheduled_time(heard: Heard) -> None:
    log = sent(5, 7, 55, 56)
    heard.fire(log.rows(0, 2))
    assert [event["response_time"] for event in heard.events] == [5, 7]
    heard.fire(log)
    assert [event["response_time"] for event in heard.events] == [5, 7, 55, 56]
    assert [event["exception"] is None for event in heard.events] == [True, True, True, False]
    starts_s = [event["start_time"] for event in heard.events]
    assert np.diff(starts_s)[[0, 2]] == pytest.approx(0.01, abs=1e-6)  # of those that were fired together
    assert starts_s[0] == pytest.approx(time.time() - 1, abs=60)
    entry = heard.stats.entries["m", "infer"]
    assert (entry.num_requests, entry.num_failures) == (4, 1)
    assert entry.response_times == {5: 1, 7: 1, 55: 1, 56: 1}


def test_a_listener_that_ends_the_test_does_not_lose_the_events_after_it(heard: Heard) -> None:
    def end_it(**_: Any) -> None:
        raise StopUser

    heard.request.add_listener(end_it)  # type: ignore[no-untyped-call]
    heard.fire(sent(*[5] * 12_001))
    assert len(heard.events) == heard.stats.total.num_requests == 12_001
    assert isinstance(heard.sent.order, StopUser)
