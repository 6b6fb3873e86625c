"""The send loop in virtual time: what leaves when, what is read when, and what ends how, to the nanosecond."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
from virtual_server import BEGIN_NS, MS, VirtualServer

from loadgen.sending.request_table import LogTable, own_table
from loadgen.sending.send_loop import ClosedLoop, SendLoop, Shard
from loadgen.status import CLOSED, OK, REFUSED, TIMED_OUT
from loadgen.wire.poller import Poller

NEVER_NS = 1 << 60


def carried_out(
    kind: Callable[..., SendLoop],
    server: VirtualServer,
    table: LogTable,
    *,
    tick: Callable[[int, int], bool] = lambda _now, _in_flight: False,
    timeout_ms: int = 60_000,
    part: int = 0,
    parts: int = 1,
    **options: Any,
) -> SendLoop:
    """Let a loop of some kind work on a table until all is answered; return the loop."""
    rules = {"rate_per_s": None, "limit_ms": None, "duration_s": 1.0} | options
    shard = Shard(part=part, parts=parts, timeout_s=timeout_ms / 1e3, **rules)
    loop = kind(shard, table, server, cast("Poller", server), tick, server)
    server.finished = loop.finished
    loop.run(BEGIN_NS)
    return loop


def sent(server: VirtualServer, due_ms: Any, **options: Any) -> LogTable:
    """Send rows, due at these times in ms, to a server; return the table."""
    due_ns = (np.asarray(due_ms) * MS).astype(np.int64)
    table = own_table(len(due_ns))
    table.scheduled_ns[:] = due_ns
    carried_out(SendLoop, server, table, **options)
    return table


@pytest.mark.parametrize("part", [0, 1, 2])
def test_each_part_sends_its_own_rows_at_their_times(part: int) -> None:
    table = sent(VirtualServer(lambda row: (3 + row) * MS), np.arange(30) * 10.0, part=part, parts=3)
    mine = np.arange(30) % 3 == part
    assert table.sent_ns[mine].tolist() == np.maximum(table.scheduled_ns[mine], 1).tolist()  # 0: it never left
    assert (table.done_ns[mine] - table.scheduled_ns[mine]).tolist() == [(3 + row) * MS for row in range(10)]
    assert not table.sent_ns[~mine].any()
    assert not table.done_ns[~mine].any()


def test_nothing_leaves_before_its_time_and_no_more_than_eight_before_answers_are_read() -> None:
    server = VirtualServer(lambda row: MS, send_ns=MS // 10, stamp=lambda _: 0)
    table = sent(server, [0.0] * 50 + [20.0, 30.0, 30.0])
    assert (table.sent_ns >= table.scheduled_ns).all()
    assert server.most_sent_between_reads == 8
    assert (table.sent_ns[50:] - table.scheduled_ns[50:]).max() == MS // 10  # the one before left at that moment


def test_a_request_that_is_due_goes_before_the_next_answer_is_read() -> None:
    server = VirtualServer(lambda row: 50 * MS, read_ns=2 * MS)
    table = sent(server, [0.0] * 8 + [55.0])
    assert table.sent_ns[8] - table.scheduled_ns[8] <= 2 * MS


def test_a_cap_holds_requests_back_until_an_answer_came() -> None:
    server = VirtualServer(lambda row: 30 * MS)
    table = sent(server, np.arange(12) * 5.0, max_in_flight=2)
    assert server.most_in_flight == 2
    assert server.longest_unread_ns == 0, "an answer lets the next request go: it is read at once"
    assert (table.sent_ns[2:] == np.maximum(table.done_ns[:-2], table.scheduled_ns[2:])).all()


def test_what_is_due_above_the_most_in_flight_is_refused_at_once() -> None:
    """29 ms each, two at a time, due every 10 ms: the third is refused, the fourth sent as the first has ended."""
    server = VirtualServer(lambda row: 29 * MS)
    table = sent(server, np.arange(12) * 10.0, refuse_above=2)
    assert server.most_in_flight == 2
    refused = np.arange(12) % 3 == 2
    assert table.outcome.tolist() == [REFUSED if one else OK for one in refused]
    assert (table.sent_ns[1:] == table.scheduled_ns[1:]).all(), "nothing is held back"
    assert (table.done_ns == table.sent_ns)[refused].all()
    assert server.longest_unread_ns == 0, "an answer decides what comes of the next request: it is read at once"


def test_a_time_out_counts_from_each_requests_own_time() -> None:
    server = VirtualServer(lambda row: 99 * MS)
    table = sent(server, np.arange(50) * 10.0, timeout_ms=100)
    assert not table.outcome.any()
    assert server.given_up == []


@pytest.mark.parametrize(("takes_ns", "outcome"), [(100 * MS, OK), (100 * MS + 1, TIMED_OUT)])
def test_an_answer_within_the_time_out_counts_to_the_nanosecond(takes_ns: int, outcome: int) -> None:
    table = sent(VirtualServer(lambda row: takes_ns), [10.0], timeout_ms=100)
    assert (table.outcome.tolist(), table.done_ns.tolist()) == ([outcome], [10 * MS + takes_ns])


@pytest.mark.parametrize("sends_late", [False, True])
def test_a_request_times_out_from_when_it_was_due(sends_late: bool) -> None:
    """Within a quarter of the time-out, however late it left."""
    server = VirtualServer(lambda row: 70 * MS if sends_late and row == 0 else NEVER_NS)
    table = sent(server, [0.0, 0.0], timeout_ms=100, max_in_flight=1 if sends_late else None)
    assert (table.outcome[1], server.given_up[-1]) == (TIMED_OUT, 1)
    assert 100 * MS <= table.done_ns[1] <= 126 * MS
    assert table.sent_ns[1] == (70 * MS if sends_late else 1)


@pytest.mark.parametrize(("outcome", "counts_as"), [(OK, TIMED_OUT), (CLOSED, CLOSED)])
def test_an_answer_after_the_time_out_is_none_and_a_failure_stays_what_it_was(
    outcome: int, counts_as: int
) -> None:
    """The second left 70 ms late and its answer took 31 ms: after the time-out, before it was given up."""
    server = VirtualServer(
        lambda row: 70 * MS if row == 0 else 31 * MS, outcome=lambda row: outcome if row else OK
    )
    table = sent(server, [10.0, 10.0], timeout_ms=100, max_in_flight=1)
    assert server.given_up == []
    assert table.outcome.tolist() == [OK, counts_as]


@pytest.mark.parametrize(("noted", "outcome"), [(True, OK), (False, TIMED_OUT)])
def test_an_answer_that_came_in_time_and_was_read_late_did_not_time_out(noted: bool, outcome: int) -> None:
    """Two come at 90 ms; to read the first takes until 110."""
    server = VirtualServer(lambda row: 90 * MS, read_ns=20 * MS, stamp=lambda came_ns: came_ns if noted else 0)
    assert sent(server, [0.0, 0.0], timeout_ms=100).outcome[1] == outcome


@pytest.mark.parametrize("wrong_ns", [-3600_000 * MS, -60 * MS, 1, 3600_000 * MS])
def test_a_note_from_before_the_request_left_or_from_the_future_is_not_believed(wrong_ns: int) -> None:
    """Somebody set the clock. The second request was due 70 ms before it left."""
    server = VirtualServer(lambda row: 70 * MS if row == 0 else 20 * MS, stamp=lambda came_ns: came_ns + wrong_ns)
    table = sent(server, [0.0, 0.0], max_in_flight=1)
    if wrong_ns != -60 * MS:
        assert table.done_ns.tolist() == [70 * MS, 90 * MS]
    assert table.done_ns[1] == 90 * MS


def test_a_stop_sends_what_was_due_and_nothing_after_it() -> None:
    ticks: list[tuple[int, int]] = []

    def stop(now_ns: int, in_flight: int) -> bool:
        ticks.append((now_ns, in_flight))
        return now_ns > 90 * MS

    table = sent(
        VirtualServer(lambda row: 60 * MS), [0.0, 0.0, 0.0, 10.0, 500.0, 501.0], max_in_flight=1, tick=stop
    )
    assert (table.sent_ns > 0).tolist() == [True] * 4 + [False] * 2
    assert (table.done_ns > 0).tolist() == [True] * 4 + [False] * 2
    assert max(in_flight for _, in_flight in ticks) == 1
    gaps_ns = np.diff([now_ns for now_ns, _ in ticks])
    assert (gaps_ns >= 50 * MS).all()
    assert gaps_ns.max() <= 60 * MS


def test_a_user_asks_again_as_soon_as_the_answer_is_read_and_none_after_the_time() -> None:
    """Two users; to read an answer takes 1 ms, and it counts from when it came."""
    table, server = own_table(20), VirtualServer(lambda row: 30 * MS, read_ns=MS)
    loop = carried_out(ClosedLoop, server, table, concurrency=2, duration_s=0.1)
    assert (table.scheduled_ns[:8] // MS).tolist() == [0, 0, 31, 32, 62, 63, 93, 94]
    assert table.sent_ns[:8].tolist() == np.maximum(table.scheduled_ns[:8], 1).tolist()
    assert (table.done_ns[:8] / MS).tolist() == [30, 30, 61, 62, 92, 93, 123, 124]
    assert not table.sent_ns[8:].any()
    assert (loop.rows_sent, server.most_in_flight) == (8, 2)


@pytest.mark.parametrize(("rows", "stop_ms", "left"), [(3, 60_000, 3), (20, 90, 4)])
def test_a_closed_loop_ends_when_the_table_is_full_or_it_is_stopped(rows: int, stop_ms: int, left: int) -> None:
    """It is asked at 100 ms whether to stop; the request of 90 ms gets its answer."""
    table, server = own_table(rows), VirtualServer(lambda row: 30 * MS)
    loop = carried_out(
        ClosedLoop,
        server,
        table,
        tick=lambda now_ns, _: now_ns > stop_ms * MS,
        concurrency=1,
        duration_s=10.0,
    )
    assert loop.rows_sent == left
    assert np.flatnonzero(table.done_ns).tolist() == list(range(left))
    assert table.done_ns[left - 1] == 30 * left * MS
