import os
import subprocess
import sys

import numpy as np
import pytest

from loadgen.sending.request_table import ClosedLog, GrowingLog, LogTable, create_table_fd
from loadgen.status import UNFINISHED

MS = 1_000_000


@pytest.fixture
def table() -> LogTable:
    fd = create_table_fd(10)
    table = LogTable(fd, 10)
    os.close(fd)
    table.scheduled_ns[:] = np.arange(10) * 10 * MS
    return table


def end(table: LogTable, *rows: int, after_ms: int = 5) -> None:
    for row in rows:
        table.sent_ns[row] = table.scheduled_ns[row] + 1
        table.done_ns[row] = table.scheduled_ns[row] + after_ms * MS


def test_a_finished_log_is_a_view_of_what_was_sent(table: LogTable) -> None:
    end(table, *range(6))
    log = table.finished(10)
    assert len(log) == 6
    assert np.shares_memory(log.done_ns, table.done_ns)


def test_a_log_of_workers_that_stopped_apart_leaves_out_what_was_never_sent(table: LogTable) -> None:
    end(table, 0, 1, 2, 4, 6)
    assert table.finished(10).scheduled_ns.tolist() == [row * 10 * MS for row in (0, 1, 2, 4, 6)]


def test_a_log_of_closed_loops_is_put_in_order(table: LogTable) -> None:
    table.scheduled_ns[:4] = [0, 30, 10, 20]
    end(table, 0, 1, 2, 3)
    assert table.finished(4).scheduled_ns.tolist() == [0, 10, 20, 30]


def test_a_growing_log_ends_where_a_request_may_still_be_fast(table: LogTable) -> None:
    growing = GrowingLog(table, late_ns=50 * MS)
    end(table, 0, 1, 3)
    log = growing.at(45 * MS)
    assert len(log) == 2  # row 2 was due 25 ms ago: it may yet come back within 50 ms
    end(table, 2)
    assert len(growing.at(45 * MS)) == 4


def test_a_request_that_is_late_already_is_in_the_log_with_its_time_so_far(table: LogTable) -> None:
    growing = GrowingLog(table, late_ns=15 * MS)
    end(table, 0, 2, 3)
    log = growing.at(35 * MS)
    assert log.outcome.tolist() == [0, UNFINISHED, 0, 0]
    assert log.latency_ns[1] == 25 * MS
    assert table.outcome[1] == 0  # the table itself is the worker's


def test_a_late_request_that_comes_back_is_seen_as_it_was(table: LogTable) -> None:
    growing = GrowingLog(table, late_ns=15 * MS)
    end(table, 0, 2, 3)
    growing.at(35 * MS)
    end(table, 1, after_ms=26)
    log = growing.at(39 * MS)
    assert log.outcome.tolist() == [0, 0, 0, 0]
    assert log.latency_ns[1] == 26 * MS


def test_without_a_limit_the_log_ends_at_the_first_request_in_flight(table: LogTable) -> None:
    growing = GrowingLog(table, late_ns=None)
    end(table, 0, 2)
    assert len(growing.at(99 * MS)) == 1


def test_what_is_not_due_is_not_in_a_growing_log(table: LogTable) -> None:
    end(table, *range(10))
    assert len(GrowingLog(table, late_ns=None).at(35 * MS)) == 4


def test_a_closed_loop_log_has_what_is_done(table: LogTable) -> None:
    closed = ClosedLog(table)
    assert len(closed.at(0)) == 0
    end(table, 0, 1, 3)
    table.sent_ns[2] = 5
    assert len(closed.at(0)) == 3


WRITER = """
import os, sys
from loadgen.sending.request_table import LogTable
rows = 400_000
table = LogTable(int(sys.argv[1]), rows)
table.sent_ns[:] = 1
print("ready", flush=True)
while True:
    for row in range(0, rows, 7):
        table.done_ns[row] = 5
    table.done_ns[:] = 0
"""


def test_a_table_may_be_looked_at_while_others_write_in_it() -> None:
    fd = create_table_fd(400_000)
    table = LogTable(fd, 400_000)
    command = [sys.executable, "-c", WRITER, str(fd)]
    with subprocess.Popen(command, pass_fds=[fd], stdout=subprocess.PIPE, text=True) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
            for _ in range(100):
                ClosedLog(table).at(0)
        finally:
            writer.kill()
            os.close(fd)
