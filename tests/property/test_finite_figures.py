"""No verdict, record or sentence holds a number that is none, and a run without a request decides nothing."""

import io
import math
import re
import sys
from datetime import UTC, datetime

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from load_records import no_rows, shard_result
from rich.console import Console

from loadgen.command.arguments import order_from_options
from loadgen.command.measure import record_of
from loadgen.command.verdict import LoadTestResult
from loadgen.measurement.request_log import RequestLog
from loadgen.measurement.result import measurement_of
from loadgen.options.declare import made_of
from loadgen.options.load_test import LoadTestOptions
from loadgen.records.formats import UNKNOWN, format_ms, format_percent, format_rate, format_seconds, format_size
from loadgen.records.record import LoadTestRecord
from loadgen.reports import write
from loadgen.reports.views import answer_view, html_page
from loadgen.reports.write import junit_xml, record_json
from loadgen.sending.plan_run import LoadRun
from loadgen.spec.limits import LatencyLimit
from loadgen.spec.load_test import LoadTest
from loadgen.statistics.capacity import Capacity
from loadgen.statistics.checks import judge
from loadgen.statistics.probe import Probe, evaluate_probe
from loadgen.status import CLIENT_LIMIT, OK, TIMED_OUT

NO_NUMBER = re.compile(r"(?<![a-z])(nan|-?inf(inity)?)(?![a-z])", re.IGNORECASE)
ARGUMENTS = {"url": "http://127.0.0.1:9", "model": "m", "rate": 50.0, "duration": "10s", "warmup": "0s"}
OPEN = {**ARGUMENTS, "p99": "50ms", "p50": "10ms", "max_errors": "1%"}
ORDERS = [
    order_from_options(made_of(LoadTestOptions, arguments, str), {})[0]
    for arguments in (
        ARGUMENTS,
        OPEN,
        {**OPEN, "max_errors": "0%"},
        {**OPEN, "rate": None, "concurrency": 3},
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


def record_for(order: LoadTest, log: RequestLog, *, stopped: bool, wall_s: float) -> LoadTestRecord:
    shard = shard_result(wall_s=wall_s, cpu_s=wall_s / 10)
    limit_ms = order.limits.strictest_ms
    measurement = measurement_of(log, order.plan, [shard], limit_ms=limit_ms, stopped=stopped)
    run = LoadRun(log=log, measurement=measurement, stopped="watch" if stopped else None)
    checks = judge(log, order.limits)
    return record_of(order, LoadTestResult(run=run, checks=checks), notes=(), started_at=datetime.now(UTC))


@given(
    order=st.sampled_from(ORDERS),
    log=logs(),
    stopped=st.booleans(),
    wall_s=st.sampled_from([0.0, 10.0]),
)
@example(order=ORDERS[0], log=no_rows(), stopped=True, wall_s=0.0)
@example(order=ORDERS[2], log=no_rows(), stopped=False, wall_s=0.0)
@settings(max_examples=30)
def test_every_run_has_a_record_that_can_be_read_back_and_shown(
    order: LoadTest, log: RequestLog, stopped: bool, wall_s: float
) -> None:
    record = record_for(order, log, stopped=stopped, wall_s=wall_s)
    text = record_json(record)
    assert LoadTestRecord.model_validate_json(text) == record
    shown = Console(file=io.StringIO(), width=100, record=True)
    shown.print(answer_view(record))
    for report in (text, shown.export_text(), junit_xml(record), html_page(record)):
        found = NO_NUMBER.search(_without_scripts(report))
        assert found is None, report[max(0, found.start() - 80) : found.end() + 80]
    for table in (write.stats_csv(record, log), write.history_csv(record, log)):
        assert NO_NUMBER.search(table) is None, table
    if not len(log):
        assert record.outcome == "untrustworthy"
        assert record.reasons[0] == "nothing was measured"
        assert all(check.answer == "inconclusive" for check in record.checks)


def _without_scripts(page: str) -> str:
    return re.sub(r"<(style|script).*?</\1>", "", page, flags=re.DOTALL)


@given(log=logs(), overloaded=st.booleans())
def test_a_probe_without_a_request_after_its_warm_up_says_nothing(log: RequestLog, overloaded: bool) -> None:
    seen = evaluate_probe(
        Probe(log=log, overloaded=overloaded, problems=()),
        50.0,
        limits=(LatencyLimit(limit_ms=50.0, quantile=0.99),),
    )
    known = Capacity.guessed(50.0, 0.05).updated(seen)
    assert 0 < known.quantile(0.05) <= known.quantile(0.95) < math.inf
    assert 0 < known.error < math.inf
    seen_overload = seen.overloaded and len(log) > 0
    assert bool(seen.problems) is (seen.verdict.n == 0 and not seen_overload)


ANY_NUMBER = st.floats(allow_nan=True, allow_infinity=True)


@given(ANY_NUMBER)
@example(5e-324)
@example(sys.float_info.max)
def test_no_number_in_words_is_none(value: float) -> None:
    for say in (format_ms, format_rate, format_percent, format_seconds, format_size):
        text = say(value)
        assert NO_NUMBER.search(text) is None
        assert text == UNKNOWN or math.isfinite(value)
