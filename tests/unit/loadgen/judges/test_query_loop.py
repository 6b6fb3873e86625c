"""Queries of a foreign generator: each ends once, failed ones late, and no error is lost in its thread."""

import threading
import time
from collections.abc import Sequence

import pytest

from loadgen.clients.wire import Finished
from loadgen.judges.query_loop import QueryLoop
from loadgen.sending.request_table import LogTable, own_table
from loadgen.status import CLOSED, OK, TIMED_OUT

MS = 1_000_000


class Scripted:
    """A wire and its poller: row r ends with `outcomes[r]` when it is read, at once with `at_once`, or never."""

    answers_may_wait = True

    def __init__(self, outcomes: dict[int, int], at_once: frozenset[int] = frozenset()) -> None:
        self.outcomes = outcomes
        self.at_once = at_once
        self.in_flight: dict[int, object] = {}
        self.finished: Finished = lambda _row, _outcome, _arrived_ns: None
        self.sleep = time.sleep

    def send(self, row: int) -> bool:
        if row in self.at_once:
            self.finished(row, self.outcomes[row], 0)
        else:
            self.in_flight[row] = row
        return True

    def wait(self, timeout_ns: int) -> list[tuple[int, int]]:
        time.sleep(0.0005)
        return [(row, 1) for row in list(self.in_flight) if row in self.outcomes]

    def handle(self, row: int, _events: int) -> None:
        del self.in_flight[row]
        self.finished(row, self.outcomes[row], 0)

    def give_up(self, row: int) -> None:
        del self.in_flight[row]


class Generator:
    """Issues so many queries, a millisecond apart, and notes when each is completed."""

    def __init__(self, wire: Scripted, *, rows: int, limit_ms: float, timeout_ms: float) -> None:
        self.table: LogTable = own_table(rows)
        self.table.scheduled_ns[:] = [row * MS for row in range(rows)]
        self.completed_ns: dict[int, int] = {}
        self.loop = QueryLoop(
            limit_ms=limit_ms,
            complete=self.complete,
            parts={
                "table": self.table,
                "part": 0,
                "parts": 1,
                "wire": wire,
                "poller": wire,  # type: ignore[typeddict-item]
                "timeout_ns": round(timeout_ms * MS),
                "tick": lambda *_: False,
            },
        )
        wire.finished = self.loop.finished

    def complete(self, names: Sequence[int]) -> None:
        for name in names:
            assert name not in self.completed_ns
            self.completed_ns[name] = self.loop.elapsed_ns()

    def run(self, queries: int) -> None:
        def issue() -> None:
            for row in range(queries):
                self.loop.issue([1000 + row], [0])
                time.sleep(0.001)

        thread = threading.Thread(target=issue)
        thread.start()
        self.loop.run_until(lambda: len(self.completed_ns) == queries)
        thread.join()


def test_every_query_ends_once_and_failed_ones_after_the_limit_and_the_timeout() -> None:
    wire = Scripted({0: OK, 1: CLOSED, 2: OK, 3: CLOSED}, at_once=frozenset({3}))
    generator = Generator(wire, rows=5, limit_ms=50, timeout_ms=20)  # row 4 is never answered
    generator.run(5)
    assert set(generator.completed_ns) == set(range(1000, 1005))
    late_ns = {row: generator.completed_ns[1000 + row] - row * MS for row in range(5)}
    assert all(late_ns[row] > 50 * MS for row in (1, 3, 4))
    assert generator.table.outcome.tolist() == [OK, CLOSED, OK, CLOSED, TIMED_OUT]


def test_a_failed_query_of_a_long_timeout_counts_as_long() -> None:
    generator = Generator(Scripted({0: CLOSED}), rows=1, limit_ms=1, timeout_ms=60)
    generator.run(1)
    assert generator.completed_ns[1000] > 60 * MS


def test_the_clock_starts_with_the_schedule_and_not_with_the_first_query_that_came() -> None:
    generator = Generator(Scripted(dict.fromkeys(range(20), OK)), rows=20, limit_ms=50, timeout_ms=1000)
    generator.table.scheduled_ns[:] = [
        5 * MS + row * MS // 2 for row in range(20)
    ]  # seem to leave before they are due
    generator.run(20)
    moved_ns = generator.loop.set_clock_back()
    assert moved_ns >= 4 * MS
    lag_ns = generator.table.sent_ns - generator.table.scheduled_ns
    assert lag_ns.min() == 0
    assert (generator.table.done_ns > generator.table.sent_ns).all()
    assert generator.loop.set_clock_back() == 0


def test_more_queries_than_were_expected_are_an_error_in_the_thread_that_reads() -> None:
    generator = Generator(Scripted({0: OK}), rows=1, limit_ms=50, timeout_ms=1000)
    with pytest.raises(IndexError):
        generator.run(2)
