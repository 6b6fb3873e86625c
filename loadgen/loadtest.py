"""One load test from an order to its record: warm up, send, judge, compare."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol, TypedDict, TypeVar

from loadgen.finding import Finding, answer
from loadgen.judge import any_broken, judge, judge_tally, p99_bounds, p99_bounds_of_tally
from loadgen.plan import Arrivals, LoadPlan
from loadgen.reports.convert import load_record, measurement_record, target_record, tool_name
from loadgen.reports.figures import bin_width_s, curve_of, curve_of_tally, timeline_of, timeline_of_tally
from loadgen.reports.record import EXIT_CODES, LoadTestRecord
from loadgen.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from loadgen.live import LiveView
    from loadgen.measurement import RequestLog
    from loadgen.order import Note, Order
    from loadgen.plan import ClosedLoopPlan, Payload, Target
    from loadgen.reports.record import (
        CheckRecord,
        ComparisonRecord,
        CurveRecord,
        MeasurementRecord,
        TimelineRecord,
    )
    from loadgen.runner import LoadRun, Watch


class Generator(Protocol):
    """Sends plans: `loadgen.runner.LoadGenerator` here, or workers on other machines."""

    def run(
        self,
        target: Target,
        plan: LoadPlan | ClosedLoopPlan,
        *,
        payload: Payload | None = None,
        limit_ms: float | None = None,
        watch: Watch | None = None,
        tally: Tally | None = None,
    ) -> LoadRun:
        """See `LoadGenerator.run`."""
        ...


def find_out(order: Order, generator: Generator, view: LiveView, stop: Callable[[], bool]) -> Finding:
    """Carry the order out. `stop` is asked about every half second; True ends it with what is known by then."""
    if order.find_max:
        from loadgen.highest_rate import highest_rate

        return highest_rate(order, generator, view, stop)
    return measure(order, generator, view, stop)


def measure(order: Order, generator: Generator, view: LiveView, stop: Callable[[], bool]) -> Finding:
    """One load, warmed up with load of its own that is thrown away, and what it says about the limits."""
    warm_up(order, generator, view, stop)
    if stop():
        return Finding(run=None, interrupted=True)
    tally = tally_for(order)

    broken_by: tuple[CheckRecord, ...] = ()

    def watch(log: RequestLog) -> bool:
        nonlocal broken_by
        if tally is None:
            view.look(log)
        else:
            view.look_at_new(log, tally)
        if order.fail_fast:
            seen = _judged(log, tally, order)
            broken_by = seen if any_broken(seen) else ()
        return stop() or bool(broken_by)

    view.phase(f"Measuring {order.target.model_name}", order.plan.duration_s)
    run = generator.run(
        order.target,
        order.plan,
        payload=order.payload,
        # A load that changes may pile up and come down again: only a steady one is stopped for it.
        limit_ms=order.limits.strictest_ms if order.is_stationary else None,
        watch=watch,
        tally=tally,
    )
    # A verdict that was reached stands: the answers that came after it may show longer bursts, and undo nothing.
    return Finding(run=run, checks=broken_by or _judged(run.log, tally, order), interrupted=stop())


def tally_for(order: Order) -> Tally | None:
    """What a load is counted in that has too many requests to keep them all; None for any other."""
    plan = order.plan
    if not isinstance(plan, LoadPlan) or not order.is_long:
        return None
    return Tally(
        timeout_s=plan.timeout_s,
        limits_ms=[limit.limit_ms for limit in order.limits.latency],
        bin_s=bin_width_s(plan.duration_s, round(plan.rate_per_s * plan.duration_s)),
        max_in_flight=plan.max_in_flight,
    )


def _judged(log: RequestLog, tally: Tally | None, order: Order) -> tuple[CheckRecord, ...]:
    return judge(log, order.limits) if tally is None else judge_tally(tally, order.limits)


def warm_up(order: Order, generator: Generator, view: LiveView, stop: Callable[[], bool]) -> None:
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
    order: Order,
    finding: Finding,
    *,
    notes: Sequence[Note],
    started_at: datetime,
    baseline: LoadTestRecord | None = None,
    machines: int = 1,
) -> LoadTestRecord:
    """Everything that was found out, compared with the baseline where there is one."""
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
        **figures,
        capacity=finding.capacity,
        baseline=None if order.compare is None else order.compare.name,
        comparison=(),
    )
    comparison: tuple[ComparisonRecord, ...] = ()
    if baseline is not None:
        from loadgen.compare import compare

        comparison = compare(baseline, record)
    seen = record.measurement
    bounded_after_s = None if seen is None else seen.latency_p99_bounded_after_s
    outcome, reasons = answer(order, finding, comparison, bounded_after_s=bounded_after_s)
    return record.model_copy(
        update={
            "comparison": comparison,
            "outcome": outcome,
            "reasons": reasons,
            "exit_code": EXIT_CODES[outcome],
        }
    )


def _remarks(finding: Finding) -> tuple[str, ...]:
    return () if finding.run is None else finding.run.measurement.remarks


_Curve = TypeVar("_Curve")


class _Figures(TypedDict):
    measurement: MeasurementRecord | None
    curve: CurveRecord | None
    timeline: TimelineRecord | None


def _figures(order: Order, run: LoadRun | None, notes: list[str]) -> _Figures:
    """The figures of a run and its curves, from every request or from its tally; adds to the notes."""
    if run is None:
        return {"measurement": None, "curve": None, "timeline": None}
    log, tally, confidence = run.log, run.tally, order.limits.confidence
    timeout_ns = round(order.plan.timeout_s * 1e9)
    duration_s = max(1e-3, run.measurement.duration_s)
    least_ns: int | None = None
    if tally is not None:
        bounds = p99_bounds_of_tally(tally, confidence)
        least_ns = tally.latency.least_ns if len(tally) else None
    else:
        bounds = p99_bounds(log, confidence)
        least_ns = log.latency.least_ns if len(log) else None
    return {
        "measurement": measurement_record(
            run.measurement,
            least_ms=None if least_ns is None else least_ns / 1e6,
            target=order.target,
            plan=order.plan,
            bounds=bounds,
            confidence=confidence,
        ),
        "curve": _drawn(lambda: curve_of(log, timeout_ns) if tally is None else curve_of_tally(tally), notes),
        "timeline": _drawn(
            lambda: (
                timeline_of(log, timeout_ns, duration_s) if tally is None else timeline_of_tally(tally, duration_s)
            ),
            notes,
        ),
    }


def _drawn(make: Callable[[], _Curve], notes: list[str]) -> _Curve | None:
    """What only a page shows; None and a note if it cannot be made, as no verdict is lost for a picture."""
    try:
        return make()
    except Exception as error:
        notes.append(f"A curve is left out, by a bug in tritune: {type(error).__name__}: {error}")
        return None
