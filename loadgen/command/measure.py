"""One load test from an order to its record: warm up, send, judge, compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypedDict, TypeVar

from loadgen.command.live import LiveView
from loadgen.command.record_builder import load_record, measurement_record, target_record, tool_name
from loadgen.command.verdict import LoadTestResult, answer
from loadgen.exit_codes import CODES
from loadgen.measurement.request_log import RequestLog
from loadgen.records.curves import curve_of, timeline_of
from loadgen.records.record import (
    ComparisonRecord,
    CurveRecord,
    LoadTestRecord,
    MeasurementRecord,
    TimelineRecord,
)
from loadgen.sending.generator import Generator
from loadgen.sending.plan_run import LoadRun
from loadgen.sending.request_table import check_memory
from loadgen.spec.load_test import LoadTest, Note
from loadgen.spec.plan import Arrivals, LoadPlan
from loadgen.statistics.checks import FailFast, judge, p99_bounds


def run_load_test(
    order: LoadTest, generator: Generator, view: LiveView, stop: Callable[[], bool]
) -> LoadTestResult:
    """Carry the order out. `stop` is called about every half second; True ends it with the result so far."""
    if order.find_max:
        from loadgen.command.find_max import highest_rate

        return highest_rate(order, generator, view, stop)
    return measure(order, generator, view, stop)


def measure(order: LoadTest, generator: Generator, view: LiveView, stop: Callable[[], bool]) -> LoadTestResult:
    """Run one load after a warm-up that is not counted, and judge the limits."""
    if isinstance(order.plan, LoadPlan):
        check_memory(order.plan)
    warm_up(order, generator, view, stop)
    if stop():
        return LoadTestResult(run=None, interrupted=True)
    fail_fast = FailFast(order.limits) if order.fail_fast else None

    def watch(log: RequestLog) -> bool:
        view.look(log)
        return stop() or (fail_fast is not None and fail_fast.look(log))

    view.phase(f"Measuring {order.target.model_name}", order.plan.duration_s)
    run = generator.run(
        order.target,
        order.plan,
        payload=order.payload,
        # A load that changes may pile up and come down again: only a steady one is stopped for it.
        limit_ms=order.limits.strictest_ms if order.is_stationary else None,
        watch=watch,
    )
    # A verdict that was reached stands: the answers that came after it may show longer bursts, and undo nothing.
    violated_by = fail_fast.violated_by if fail_fast is not None else ()
    return LoadTestResult(run=run, checks=violated_by or judge(run.log, order.limits), interrupted=stop())


def warm_up(order: LoadTest, generator: Generator, view: LiveView, stop: Callable[[], bool]) -> None:
    """Load of the same size from another seed, so that first requests and cold caches are not measured."""
    seconds = order.effective_warmup_s
    if seconds == 0:
        return
    view.phase("Warming up", seconds)
    plan = replace(order.plan, duration_s=seconds, seed=order.plan.seed + 1)
    if isinstance(plan, LoadPlan) and not order.is_stationary:
        level = plan.arrivals.levels[0] if plan.arrivals.kind in ("ramp", "steps") else 1.0
        plan = replace(plan, arrivals=Arrivals(), rate_per_s=plan.rate_per_s * (level or 1.0))

    def watch(log: RequestLog) -> bool:
        view.look(log)
        return stop()

    generator.run(order.target, plan, payload=order.payload, watch=watch)


def record_of(
    order: LoadTest,
    finding: LoadTestResult,
    *,
    notes: Sequence[Note],
    started_at: datetime,
    baseline: LoadTestRecord | None = None,
    machines: int = 1,
) -> LoadTestRecord:
    """Return the whole result, compared with the baseline if there is one."""
    texts = [note.text for note in notes]
    figures = _figures(order, finding.run, texts)
    record = LoadTestRecord(
        tool=tool_name(),
        started_at=started_at.astimezone(UTC),
        outcome="measured",
        exit_code=0,
        reasons=(),
        notes=(*texts, *_remarks(finding)),
        target=target_record(order.target),
        load=load_record(order, machines=machines),
        checks=finding.checks,
        accept_observed=order.accept_observed,
        **figures,
        capacity=finding.capacity,
        baseline=None if order.compare is None else order.compare.name,
        comparison=(),
    )
    comparison: tuple[ComparisonRecord, ...] = ()
    if baseline is not None:
        from loadgen.command.baseline import compare

        comparison = compare(baseline, record)
    seen = record.measurement
    bounded_after_s = None if seen is None else seen.latency_p99_bounded_after_s
    outcome, reasons = answer(order, finding, comparison, bounded_after_s=bounded_after_s)
    return record.model_copy(
        update={
            "comparison": comparison,
            "outcome": outcome,
            "reasons": reasons,
            "exit_code": CODES[outcome],
        }
    )


def _remarks(finding: LoadTestResult) -> tuple[str, ...]:
    return () if finding.run is None else finding.run.measurement.remarks


_Curve = TypeVar("_Curve")


class _Figures(TypedDict):
    measurement: MeasurementRecord | None
    curve: CurveRecord | None
    timeline: TimelineRecord | None


def _figures(order: LoadTest, run: LoadRun | None, notes: list[str]) -> _Figures:
    """The figures of a run and its curves; adds to the notes."""
    if run is None:
        return {"measurement": None, "curve": None, "timeline": None}
    log, confidence = run.log, order.limits.confidence
    timeout_ns = round(order.plan.timeout_s * 1e9)
    duration_s = max(1e-3, run.measurement.duration_s)
    return {
        "measurement": measurement_record(
            run.measurement,
            least_ms=int(log.latency_ns.min()) / 1e6 if len(log) else None,
            target=order.target,
            plan=order.plan,
            bounds=p99_bounds(log, confidence),
            confidence=confidence,
        ),
        "curve": _drawn(lambda: curve_of(log, timeout_ns), notes),
        "timeline": _drawn(lambda: timeline_of(log, timeout_ns, duration_s), notes),
    }


def _drawn(make: Callable[[], _Curve], notes: list[str]) -> _Curve | None:
    """Return the figures for the page alone; None and a note if that fails, so that no verdict is lost."""
    try:
        return make()
    except Exception as error:
        notes.append(f"A curve is left out, by a bug in tritune: {type(error).__name__}: {error}")
        return None
