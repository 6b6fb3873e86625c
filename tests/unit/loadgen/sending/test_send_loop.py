"""When an answer came: by the kernel's note, unless somebody has set the clock since."""

import time
from typing import cast

import numpy as np

from loadgen.clients.wire import Finished
from loadgen.sending.request_table import own_table
from loadgen.sending.send_loop import SendLoop
from loadgen.status import OK, TIMED_OUT
from loadgen.transport.http1_response import ReadBuffer
from loadgen.transport.poller import Poller

MS = 1_000_000


class Silence:
    """A wire on which nothing ever comes back."""

    in_flight: dict[int, object] = {}  # noqa: RUF012 - nothing is ever in it
    answers_may_wait = True

    def send(self, row: int) -> bool:
        return True

    def handle(self, fd: int, events: int) -> None: ...
    def give_up(self, row: int) -> None: ...


class Echo:
    """A wire and its poller: every answer is in the kernel as soon as its request has left."""

    answers_may_wait = True

    def __init__(self) -> None:
        self.in_flight: dict[int, int] = {}
        self.finished: Finished = lambda _row, _outcome, _arrived_ns: None
        self.reads = 0
        self.sleep = time.sleep

    def send(self, row: int) -> bool:
        self.in_flight[row] = time.time_ns()
        return True

    def wait(self, timeout_ns: int) -> list[tuple[int, int]]:
        self.reads += 1
        if not self.in_flight and timeout_ns > 0:
            time.sleep(timeout_ns * 1e-9)
        return [(1, 1)] if self.in_flight else []

    def handle(self, _fd: int, _events: int) -> None:
        for row, arrived_ns in list(self.in_flight.items()):
            del self.in_flight[row]
            self.finished(row, OK, arrived_ns)

    def give_up(self, row: int) -> None: ...


def test_answers_in_the_kernel_are_read_together_and_never_waited_for_in_a_circle() -> None:
    rows, echo, backlogs = 200, Echo(), []
    table = own_table(rows)
    table.scheduled_ns[:] = np.arange(rows) * MS // 2

    def tick(_now_ns: int, in_flight: int) -> bool:
        backlogs.append(in_flight)
        return False

    loop = SendLoop(
        table=table,
        part=0,
        parts=1,
        wire=echo,
        poller=cast("Poller", echo),
        timeout_ns=1000 * MS,
        tick=tick,
    )
    echo.finished = loop.finished
    loop.run(time.monotonic_ns())
    assert table.done_ns.all()
    assert (table.done_ns[10:] - table.sent_ns[10:] < MS).mean() > 0.9  # whenever they were read
    assert echo.reads < rows / 2
    assert max(backlogs[1:], default=0) <= 8  # no more than what left while answers were read


def ended(*, age_ms: int | None, timeout_ms: int = 60_000) -> tuple[float, int]:
    """How many ms before now a request that left 20 ms ago is said to have ended, and its outcome.

    `age_ms`: how long ago the kernel got its answer, by the wall clock; None: it does not say.
    """
    table, poller = own_table(1), Poller()
    loop = SendLoop(
        table=table,
        part=0,
        parts=1,
        wire=Silence(),
        poller=poller,
        timeout_ns=timeout_ms * MS,
        tick=lambda _now, _in_flight: True,
    )
    table.scheduled_ns[0] = table.sent_ns[0] = 1
    loop._origin_ns = time.monotonic_ns() - 20 * MS
    before_ns = loop.elapsed_ns()
    loop.finished(0, OK, 0 if age_ms is None else time.time_ns() - age_ms * MS)
    poller.close()
    return (before_ns - int(table.done_ns[0])) / MS, int(table.outcome[0])


def test_an_answer_counts_from_when_the_kernel_got_it() -> None:
    assert 10 < ended(age_ms=15)[0] <= 15


def test_without_a_note_or_with_one_from_another_clock_it_counts_from_now() -> None:
    for age_ms in (None, 3_600_000, -3_600_000):
        assert ended(age_ms=age_ms)[0] <= 0


def test_an_answer_that_came_in_time_and_was_read_late_did_not_time_out() -> None:
    assert ended(age_ms=15, timeout_ms=10)[1] == OK
    assert ended(age_ms=None, timeout_ms=10)[1] == TIMED_OUT


def test_one_large_read_is_enough_to_take_answers_at_once_from_then_on() -> None:
    buffer = ReadBuffer()
    buffer.received(1000)
    assert buffer.takes_little
    buffer.received(100_000)
    buffer.received(10)
    assert not buffer.takes_little
    assert buffer.bytes_received == 101_010
