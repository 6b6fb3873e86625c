"""When an answer came: by the kernel's note, unless somebody has set the clock since."""

import time

from loadgen.http_answer import ReadBuffer
from loadgen.outcomes import OK, TIMED_OUT
from loadgen.poller import Poller
from loadgen.send_loop import SendLoop
from loadgen.shared_log import own_table

MS = 1_000_000


class Silence:
    """A wire on which nothing ever comes back."""

    in_flight: dict[int, object] = {}  # noqa: RUF012 - nothing is ever in it
    answers_may_wait = True

    def send(self, row: int) -> None: ...
    def handle(self, fd: int, events: int) -> None: ...
    def give_up(self, row: int) -> None: ...


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
