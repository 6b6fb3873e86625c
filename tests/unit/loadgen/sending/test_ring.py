"""A circular log: every request of a schedule of any length comes out once, in order."""

from collections.abc import Generator
from typing import Any

import numpy as np
import pytest

from loadgen.measurement.request_log import concatenate
from loadgen.sending.request_table import LogTable, own_table
from loadgen.sending.ring import END_NS, NOT_WRITTEN_NS, RingLog, rows_for

SECOND = 1_000_000_000


def pieces(total: int, size: int) -> Generator[Any, None, None]:
    return (np.arange(at, min(at + size, total)) for at in range(0, total, size))


class Sender:
    """Sends the written rows in turn, as a load process does; `ends` says which requests get their answer."""

    def __init__(self, table: LogTable) -> None:
        self.table = table
        self.sent = 0

    def send(self, most: int) -> None:
        for _ in range(most):
            row = self.sent % self.table.rows
            if self.table.scheduled_ns[row] >= NOT_WRITTEN_NS:
                return
            self.table.sent_ns[row] = self.table.scheduled_ns[row] + 1
            self.table.outcome[row] = self.sent % 3
            self.sent += 1

    def end(self, number: int) -> None:
        row = number % self.table.rows
        self.table.done_ns[row] = self.table.sent_ns[row] + 5


@pytest.mark.parametrize(("rows", "total", "piece"), [(16, 1000, 7), (64, 1000, 300), (16, 10, 3), (16, 0, 1)])
def test_a_long_schedule_goes_round_and_comes_out_whole(rows: int, total: int, piece: int) -> None:
    table = own_table(rows)
    laps, sender, random = RingLog(table, pieces(total, piece)), Sender(table), np.random.default_rng(3)
    out = []
    ended = 0
    while ended < total:
        sender.send(int(random.integers(1, rows)))
        for number in random.permutation(np.arange(ended, sender.sent)):
            sender.end(int(number))
        ended = sender.sent
        out.append(laps.turn())
    log = concatenate([*out, laps.turn()])
    assert log.scheduled_ns.tolist() == list(range(total))
    assert log.outcome.tolist() == [number % 3 for number in range(total)]
    assert (log.service_ns == 5).all()
    assert len(laps.rest()) == 0
    assert table.scheduled_ns[total % rows] == END_NS


def test_a_request_that_has_not_ended_holds_back_those_after_it() -> None:
    table = own_table(8)
    laps, sender = RingLog(table, pieces(20, 4)), Sender(table)
    sender.send(6)
    for number in (0, 1, 3, 4, 5):
        sender.end(number)
    assert laps.turn().scheduled_ns.tolist() == [0, 1]
    assert laps.settled_until_ns == 2
    sender.end(2)
    assert laps.turn().scheduled_ns.tolist() == [2, 3, 4, 5]


def test_the_rest_is_what_left_and_not_what_never_did() -> None:
    table = own_table(8)
    laps, sender = RingLog(table, pieces(20, 4)), Sender(table)
    sender.send(3)
    sender.end(0)
    laps.turn()
    sender.end(2)
    sender.end(1)
    assert laps.rest().scheduled_ns.tolist() == [1, 2]


def test_there_is_room_for_what_may_be_unanswered_and_no_more_than_fits() -> None:
    assert rows_for(5000, timeout_s=10.0, parts=3) % 3 == 0
    assert 5000 * 10 < rows_for(5000, timeout_s=10.0, parts=3) < 5000 * 30
    assert rows_for(1e6, timeout_s=600.0, parts=1) == 10_000_000
