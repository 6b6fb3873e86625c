"""The log of streams as each limit sees it, and their figures."""

from typing import Any

import numpy as np
import pytest

from loadgen.measurement.request_log import RequestLog
from loadgen.measurement.streams import STREAM_DTYPE, stream_figures
from loadgen.spec.limits import StreamLimit, all_of, settled_limits
from loadgen.status import CUT_OFF, OK, UNFINISHED

MS = 1_000_000
TTFT = StreamLimit(limit_ms=100, quantile=0.9, measure="ttft")
TPOT = StreamLimit(limit_ms=20, quantile=0.9, measure="tpot")
E2E = StreamLimit(limit_ms=400, quantile=0.99, measure="e2e")


def log_of(*rows: dict[str, Any]) -> RequestLog:
    """A request a second, sent 5 ms late; times in ms from when it was due."""
    streams = np.zeros(len(rows), STREAM_DTYPE)
    due_ns = np.arange(len(rows), dtype=np.int64) * 1000 * MS
    done_ns, outcome = due_ns.copy(), np.zeros(len(rows), np.uint8)
    for at, row in enumerate(rows):
        first, last = (due_ns[at] + row[name] * MS if row.get(name) else 0 for name in ("first", "last"))
        chunks = row.get("chunks", 11)
        tokens, parts = row.get("tokens", 11), row.get("parts", (1, chunks - 1))
        streams[at] = (first, last, 7 * MS, 9, tokens, row.get("cached", 0), chunks, *parts, b"length")
        done_ns[at] += row["done"] * MS
        outcome[at] = row.get("outcome", OK)
    return RequestLog(
        scheduled_ns=due_ns, sent_ns=due_ns + 5 * MS, done_ns=done_ns, outcome=outcome, streams=streams
    )


def judged_ms(log: RequestLog, limit: StreamLimit) -> list[float]:
    return (log.judged_by(limit).latency_ns / MS).tolist()


LOG = log_of(
    {"first": 50, "last": 250, "done": 260},
    {"first": 50, "last": 250, "done": 260, "tokens": -1, "chunks": 6},  # no usage: chunks are counted
    {"first": 50, "last": 50, "done": 60, "tokens": 1, "chunks": 1},
)


def test_each_limit_sees_its_own_time() -> None:
    assert judged_ms(LOG, TTFT) == [50.0, 50.0, 50.0]
    assert judged_ms(LOG, TPOT) == [20.0, 40.0, 0.0]
    assert judged_ms(LOG, E2E) == [260.0, 260.0, 60.0]


def test_goodness_is_the_largest_share_of_a_limit() -> None:
    goodness = all_of(settled_limits((TTFT, TPOT, E2E), 11), 0.95)
    assert goodness.quantile == 0.95
    share = [one / goodness.limit_ms for one in judged_ms(LOG, goodness)]
    assert share == pytest.approx([1.0, 2.0, 0.5])
    late = LOG.judged_by(goodness).latency_ns > goodness.limit_ns
    assert late.tolist() == [False, True, False]  # exactly at a limit is in time


def test_the_load_is_steady_after_the_time_that_a_reply_may_take() -> None:
    limits = settled_limits((TTFT, TPOT, E2E), 11)
    assert {limit.steady_after_ms for limit in limits} == {320.0}  # 100 + 11 x 20 is less than 400
    assert settled_limits((E2E,), 11)[0].steady_after_ms == 400.0
    assert settled_limits((TPOT, E2E), 11)[0].steady_after_ms == 400.0
    assert settled_limits((TTFT,), 11) == settled_limits((TPOT,), 11) == ()


def test_an_unfinished_request_may_yet_be_in_time_but_is_not_good() -> None:
    log = log_of({"first": 50, "last": 250, "done": 260}, {"done": 450, "outcome": UNFINISHED})
    parts = settled_limits((TTFT, TPOT), 11)
    limits = (*parts, all_of(parts, 0.9))
    assert [len(log.judged_by(limit)) for limit in limits] == [1, 1, 2]
    assert log.judged_by(limits[-1]).failed.tolist() == [False, True]


def test_parts_and_judged_logs_keep_what_they_are() -> None:
    assert judged_ms(LOG.rows(1, 3), TPOT) == [40.0, 0.0]
    again = LOG.judged_by(TTFT).judged_by(TTFT)
    assert (again.latency_ns / MS).tolist() == [50.0, 50.0, 50.0]


def test_more_cached_tokens_than_the_prompt_has_are_not_believed() -> None:
    log = log_of({"first": 50, "last": 250, "done": 260, "cached": 10**9})
    assert log.streams is not None
    seen = stream_figures(log.scheduled_ns, log.failed, log.streams)
    assert (seen.cached_tokens, seen.in_front) == (0, ())


def test_tokens_that_come_together() -> None:
    log = log_of(
        {"first": 210, "last": 370, "done": 380, "tokens": 32, "chunks": 2, "parts": (16, 16)},
        {"first": 210, "last": 210, "done": 220, "chunks": 1, "parts": (11, 0)},  # at most 210 ms for ten
        {"first": 170, "last": 210, "done": 220, "tokens": 128, "chunks": 5, "parts": (1, 4)},
    )
    assert judged_ms(log, TPOT) == [10.0, 21.0, 10.0]
    assert log.streams is not None
    seen = stream_figures(log.scheduled_ns, log.failed, log.streams)
    assert seen.tpot_ms["p50"] == 10.0
    assert (seen.several_per_event, seen.at_once, seen.hidden_tokens) == (1, 1, 123)
    assert (len(seen.in_front), len(seen.remarks)) == (1, 2)


def test_figures_have_failed_requests_last_and_count_tokens_and_chunks() -> None:
    log = log_of(
        {"first": 50, "last": 250, "done": 260, "cached": 3},
        {"first": 60, "last": 260, "done": 270, "tokens": -1, "chunks": 6},
        {"first": 10, "last": 20, "done": 30, "chunks": 2, "tokens": 4, "outcome": CUT_OFF},
    )
    assert log.streams is not None
    seen = stream_figures(log.scheduled_ns, log.failed, log.streams)
    assert seen.ttft_ms == {"p50": 60.0, "p90": None, "p95": None, "p99": None}
    assert (seen.tokens_in, seen.tokens_out, seen.chunks) == (27, 15, 19)
    assert (seen.cached_tokens, seen.without_usage) == (3, 1)
    assert len(seen.in_front) == 1
