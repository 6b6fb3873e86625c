"""Queries of a foreign generator, in virtual time: each ends once, failed ones late, and no error is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from loadgen.clients.wire import Finished
from loadgen.judges import query_loop
from loadgen.sending import send_loop
from loadgen.sending.request_table import LogTable, own_table
from loadgen.status import CLOSED, OK, TIMED_OUT

MS = 1_000_000


class Scripted:
    """A generator's clock, wire and poller: row r ends with `outcomes[r]` when it is read, at once, or never."""

    answers_may_wait = True

    def __init__(self, outcomes: dict[int, int], at_once: frozenset[int] = frozenset()) -> None:
        self.outcomes = outcomes
        self.at_once = at_once
        self.now_ns = 7 * MS  # when a run begins
        self.in_flight: dict[int, object] = {}
        self.finished: Finished = lambda _row, _outcome, _arrived_ns: None
        self.issue_due: Callable[[], None] = lambda: None

    def monotonic_ns(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)

    def send(self, row: int) -> bool:
        if row in self.at_once:
            self.finished(row, self.outcomes[row], 0)
        else:
            self.in_flight[row] = row
        return True

    def wait(self, timeout_ns: int) -> list[tuple[int, int]]:
        assert self.now_ns < 60_000 * MS, "the loop goes on for ever"
        self.now_ns += max(0, min(timeout_ns, MS // 2))
        came = [(row, 1) for row in self.in_flight if row in self.outcomes]
        self.issue_due()
        return came

    def handle(self, row: int, _events: int) -> None:
        del self.in_flight[row]
        self.finished(row, self.outcomes[row], 0)

    def give_up(self, row: int) -> None:
        del self.in_flight[row]


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Generator]:
    """Makes a generator whose wire is the clock of the loop."""

    def made(wire: Scripted, **options: Any) -> Generator:
        for module in (query_loop, send_loop):
            monkeypatch.setattr(module, "time", wire)
        return Generator(wire, **options)

    return made


class Generator:
    """Issues so many queries, a millisecond apart, and notes when each is completed."""

    def __init__(self, wire: Scripted, *, rows: int, limit_ms: float, timeout_ms: float) -> None:
        self.wire = wire
        self.table: LogTable = own_table(rows)
        self.table.scheduled_ns[:] = [row * MS for row in range(rows)]
        self.completed_ns: dict[int, int] = {}
        self.issued = 0
        self.loop = query_loop.QueryLoop(
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
        began_ns = self.wire.now_ns

        def issue_due() -> None:
            while self.issued < queries and self.wire.now_ns >= began_ns + self.issued * MS:
                self.loop.issue([1000 + self.issued], [0])
                self.issued += 1

        self.wire.issue_due = issue_due
        self.loop.run_until(lambda: len(self.completed_ns) == queries)


def test_every_query_ends_once_and_failed_ones_after_the_limit_and_the_timeout(generator: Any) -> None:
    wire = Scripted({0: OK, 1: CLOSED, 2: OK, 3: CLOSED}, at_once=frozenset({3}))
    issuing = generator(wire, rows=5, limit_ms=50, timeout_ms=20)  # row 4 is never answered
    issuing.run(5)
    assert set(issuing.completed_ns) == set(range(1000, 1005))
    late_ns = {row: issuing.completed_ns[1000 + row] - row * MS for row in range(5)}
    assert all(late_ns[row] > 50 * MS for row in (1, 3, 4))
    assert issuing.table.outcome.tolist() == [OK, CLOSED, OK, CLOSED, TIMED_OUT]


def test_a_failed_query_of_a_long_timeout_counts_as_long(generator: Any) -> None:
    issuing = generator(Scripted({0: CLOSED}), rows=1, limit_ms=1, timeout_ms=60)
    issuing.run(1)
    assert issuing.completed_ns[1000] > 60 * MS


def test_the_clock_starts_with_the_schedule_and_not_with_the_first_query_that_came(generator: Any) -> None:
    issuing = generator(Scripted(dict.fromkeys(range(20), OK)), rows=20, limit_ms=50, timeout_ms=1000)
    issuing.table.scheduled_ns[:] = [5 * MS + row * MS // 2 for row in range(20)]  # seem to leave before
    issuing.run(20)
    moved_ns = issuing.loop.set_clock_back()
    assert moved_ns >= 4 * MS
    lag_ns = issuing.table.sent_ns - issuing.table.scheduled_ns
    assert lag_ns.min() == 0
    assert (issuing.table.done_ns > issuing.table.sent_ns).all()
    assert issuing.loop.set_clock_back() == 0


def test_more_queries_than_were_expected_are_an_error_in_the_thread_that_reads(generator: Any) -> None:
    issuing = generator(Scripted({0: OK}), rows=1, limit_ms=50, timeout_ms=1000)
    with pytest.raises(IndexError):
        issuing.run(2)
