"""No verdict, record or sentence holds a number that is none, and a run without a request decides nothing."""

import io
import math
import re
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from loadgen.arguments import Arguments, order_from_arguments
from loadgen.capacity import Probe
from loadgen.finding import Finding
from loadgen.judge import judge, judge_tally
from loadgen.loadtest import record_of
from loadgen.measurement import RequestLog, no_rows
from loadgen.order import Order
from loadgen.outcomes import CLIENT_LIMIT, OK, TIMED_OUT
from loadgen.probing import seen_from_probe
from loadgen.reports import csv_files, words
from loadgen.reports.html_page import html_page
from loadgen.reports.junit_xml import junit_xml
from loadgen.reports.record import LoadTestRecord
from loadgen.reports.terminal import answer_view
from loadgen.reports.write import record_json
from loadgen.runner import LoadRun
from loadgen.share import ShareResult
from loadgen.summary import circumstances_of, measurement_of, measurement_of_tally
from loadgen.tally import Tally

NO_NUMBER = re.compile(r"(?<![a-z])(nan|-?inf(inity)?)(?![a-z])", re.IGNORECASE)
ARGUMENTS = Arguments(url="http://127.0.0.1:9", model="m", rate=50.0, duration="10s", warmup="0s")
OPEN = replace(ARGUMENTS, limits=(("p99", "50ms"), ("p50", "10ms")), max_errors="1%")
ORDERS = [
    order_from_arguments(arguments, {})[0]
    for arguments in (
        ARGUMENTS,
        OPEN,
        replace(OPEN, max_errors="0%"),
        replace(OPEN, rate=None, concurrency=3),
    )
]


@st.composite
def logs(draw: st.DrawFn) -> RequestLog:
    """Requests in the order of their schedule: none, one or some; quick, slow or as slow as an integer can say."""
    n = draw(st.sampled_from([0, 0, 1, 2, 7, 200]))
    span_ns = draw(st.sampled_from([0, 1, 10**9, 10**10]))
    longest_ns = draw(st.sampled_from([1, 10**6, 10**9, 10**15]))
    outcomes = draw(st.sampled_from([(OK,), (TIMED_OUT,), (CLIENT_LIMIT,), (OK, TIMED_OUT)]))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    scheduled = np.sort(random.integers(0, span_ns + 1, n))
    sent = scheduled + random.integers(1, 10**6, n)
    return RequestLog(
        scheduled_ns=scheduled,
        sent_ns=sent,
        done_ns=sent + random.integers(0, longest_ns + 1, n),
        outcome=random.choice(np.array(outcomes, np.uint8), n),
    )


def result(wall_s: float) -> ShareResult:
    return ShareResult(
        rows=0,
        overloaded=False,
        wall_s=wall_s,
        cpu_s=wall_s / 10,
        bytes_sent=0,
        bytes_received=0,
        connections_opened=0,
        error_example=None,
    )


def record_for(order: Order, log: RequestLog, *, stopped: bool, counted: bool, wall_s: float) -> LoadTestRecord:
    circumstances = circumstances_of(
        [result(wall_s)], limit_ms=order.limits.strictest_ms, server=None, gpu=None, stopped=stopped
    )
    tally = None
    if counted:
        limits_ms = [limit.limit_ms for limit in order.limits.latency]
        tally = Tally(timeout_s=order.plan.timeout_s, limits_ms=limits_ms, bin_s=1.0)
        tally.add(log)
        measurement = measurement_of_tally(tally, order.plan, **circumstances)
    else:
        measurement = measurement_of(log, order.plan, **circumstances)
    run = LoadRun(
        log=no_rows() if counted else log,
        measurement=measurement,
        stopped="watch" if stopped else None,
        tally=tally,
    )
    checks = judge(log, order.limits) if tally is None else judge_tally(tally, order.limits)
    return record_of(order, Finding(run=run, checks=checks), notes=(), started_at=datetime.now(UTC))


@given(
    order=st.sampled_from(ORDERS),
    log=logs(),
    stopped=st.booleans(),
    counted=st.booleans(),
    wall_s=st.sampled_from([0.0, 10.0]),
)
@example(order=ORDERS[0], log=no_rows(), stopped=True, counted=False, wall_s=0.0)
@example(order=ORDERS[2], log=no_rows(), stopped=False, counted=True, wall_s=0.0)
def test_every_run_has_a_record_that_can_be_read_back_and_shown(
    order: Order, log: RequestLog, stopped: bool, counted: bool, wall_s: float
) -> None:
    record = record_for(order, log, stopped=stopped, counted=counted, wall_s=wall_s)
    text = record_json(record)
    assert LoadTestRecord.model_validate_json(text) == record
    shown = Console(file=io.StringIO(), width=100, record=True)
    shown.print(answer_view(record))
    for report in (text, shown.export_text(), junit_xml(record), html_page(record)):
        found = NO_NUMBER.search(_without_scripts(report))
        assert found is None, report[max(0, found.start() - 80) : found.end() + 80]
    if not counted:
        for table in (csv_files.stats_csv(record, log), csv_files.history_csv(record, log)):
            assert NO_NUMBER.search(table) is None, table
    if not len(log):
        assert record.outcome == "untrustworthy"
        assert record.reasons[0] == "nothing was measured"
        assert all(check.answer == "undecided" for check in record.checks)


def _without_scripts(page: str) -> str:
    return re.sub(r"<(style|script).*?</\1>", "", page, flags=re.DOTALL)


@given(log=logs(), overloaded=st.booleans())
def test_a_probe_without_a_request_after_its_warm_up_says_nothing(log: RequestLog, overloaded: bool) -> None:
    seen = seen_from_probe(Probe(log=log, overloaded=overloaded, problems=()), 50.0, limit_ms=50.0, quantile=0.99)
    assert math.isfinite(seen.reading.headroom)
    assert math.isfinite(seen.reading.error)
    seen_overload = seen.overloaded and len(log) > 0
    assert bool(seen.problems) is (seen.verdict.n == 0 and not seen_overload)


ANY_NUMBER = st.floats(allow_nan=True, allow_infinity=True)


@given(ANY_NUMBER)
def test_no_number_in_words_is_none(value: float) -> None:
    for say in (words.ms, words.rate, words.percent, words.seconds, words.size):
        text = say(value)
        assert NO_NUMBER.search(text) is None
        assert text == words.UNKNOWN or math.isfinite(value)
