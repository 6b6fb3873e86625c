"""What a load that MLPerf LoadGen sends may be asked for, and which exit code its verdict gives."""

from pathlib import Path
from typing import Any

import pytest

from loadgen.command.arguments import order_from_options
from loadgen.command.judge import LOADGEN_FOLDER
from loadgen.command.verdict import deciding_status
from loadgen.errors import BadInput
from loadgen.exit_codes import CODES
from loadgen.judges import mlperf
from loadgen.options.declare import made_of
from loadgen.options.load_test import LoadTestOptions
from loadgen.records.formats import judge_in_words
from loadgen.records.record import JudgeRecord, Outcome
from loadgen.spec.load_test import LoadTest
from loadgen.spec.plan import LoadPlan

GOOD: dict[str, Any] = {
    "url": "http://127.0.0.1:8000",
    "model": "m",
    "rate": 100.0,
    "p99": "50ms",
    "judge": "mlperf",
}


def order(**changes: Any) -> LoadTest:
    return order_from_options(made_of(LoadTestOptions, {**GOOD, **changes}, print), {})[0]


def verdict(**changes: Any) -> JudgeRecord:
    values: dict[str, Any] = {
        "version": "6.0.17",
        "verdict": "VALID",
        "performance_constraints_met": True,
        "min_duration_met": True,
        "min_queries_met": True,
        "early_stopping_met": True,
        "early_stopping": "Run successful.",
        "queries": 6001,
        "over_limit": 12,
        "quantile": 0.99,
        "limit_ms": 50.0,
        "latency_ms": 41.2,
        "errors": (),
        "folder": "mlperf-loadgen",
    }
    return JudgeRecord(**(values | changes))


TOO_FEW = verdict(
    verdict="INVALID",
    early_stopping_met=False,
    early_stopping="Would need to run at least 40 more queries",
)
TOO_SLOW = verdict(verdict="INVALID", early_stopping_met=False, performance_constraints_met=False, latency_ms=61.0)
CUT_SHORT = verdict(verdict="INVALID", min_queries_met=False)


def test_loadgen_draws_the_arrivals_and_keeps_its_files() -> None:
    found = order()
    assert isinstance(found.plan, LoadPlan)
    assert found.plan.arrivals.kind == "mlperf"
    assert found.judge == "mlperf"
    assert found.outputs.log == LOADGEN_FOLDER
    assert order(keep_log=Path("here")).outputs.log == Path("here")
    assert order(arrivals="poisson").plan == found.plan


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"rate": None, "concurrency": 4}, "--concurrency"),
        ({"arrivals": "ramp:from=1,to=2"}, "--arrivals"),
        ({"max_in_flight": 3}, "--max-in-flight"),
        ({"processes": 2}, "--processes"),
        ({"master": True}, "--master"),
        ({"find_max": True}, "--find-max"),
        ({"fail_fast": True}, "--fail-fast"),
        ({"accept_observed": True}, "--accept-observed"),
        ({"max_errors": "1%"}, "--max-errors"),
        ({"compare": Path(__file__)}, "--compare"),
    ],
)
def test_an_option_that_does_not_apply_is_refused_by_name(changes: dict[str, Any], flag: str) -> None:
    with pytest.raises(BadInput, match=f"{flag} does not apply to --judge mlperf") as caught:
        order(**changes)
    assert flag in caught.value.fix


def test_a_trace_is_refused(tmp_path: Path) -> None:
    trace = tmp_path / "trace.txt"
    trace.write_text("0\n1\n2\n")
    with pytest.raises(BadInput, match="--trace does not apply"):
        order(trace=trace)


def test_it_judges_one_latency_limit() -> None:
    with pytest.raises(BadInput, match="none was given"):
        order(p99=None)
    with pytest.raises(BadInput, match="p50 <= 5 ms, p99 <= 50 ms was given"):
        order(p50="5ms")


def test_more_queries_than_memory_holds_are_refused() -> None:
    with pytest.raises(BadInput, match="12,000,000 queries"):
        order(rate=20_000.0, duration="10m")


def test_a_missing_library_is_found_before_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlperf, "find_spec", lambda _: None)
    with pytest.raises(BadInput, match="not installed"):
        order()


@pytest.mark.parametrize(
    ("judge", "ours", "code"),
    [
        (None, "inconclusive", 96),
        (verdict(), "inconclusive", 0),
        (verdict(), "untrustworthy", 0),  # a late client makes latencies longer, not shorter
        (TOO_FEW, "met", 96),
        (CUT_SHORT, "met", 96),
        (TOO_SLOW, "inconclusive", 99),
        (TOO_SLOW, "untrustworthy", 98),
    ],
)
def test_its_verdict_decides_the_exit_code(judge: JudgeRecord | None, ours: Outcome, code: int) -> None:
    assert CODES[deciding_status(ours, judge)] == code


def test_its_reasons_in_words() -> None:
    assert judge_in_words(verdict()) == "p99 41.2 ms is within 50.0 ms: 12 of 6,001 queries over the limit"
    assert "is over 50.0 ms" in judge_in_words(TOO_SLOW)
    assert "too few queries. Would need to run at least 40 more queries" in judge_in_words(TOO_FEW)
    assert "ended before its time" in judge_in_words(CUT_SHORT)
