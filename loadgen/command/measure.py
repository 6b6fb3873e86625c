"""One load test from an order to its record: warm up, send, judge, compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, TypeVar

from loadgen.command.live import LiveView
from loadgen.command.verdict import LoadTestResult, answer, compare
from loadgen.errors import TargetRefused, TargetUnreachable
from loadgen.exit_codes import CODES
from loadgen.measurement.request_log import Measurement, RequestLog
from loadgen.records.curves import curve_of, phases_of, timeline_of, token_times_of
from loadgen.records.formats import format_seconds
from loadgen.records.record import LoadRecord, LoadTestRecord, MeasurementRecord, TargetRecord
from loadgen.sending.generator import Generator
from loadgen.sending.plan_run import LoadRun
from loadgen.sending.prepared import wait_ready
from loadgen.sending.request_table import check_memory
from loadgen.spec.limits import StreamLimit
from loadgen.spec.load_test import LoadTest, Note
from loadgen.spec.plan import Arrivals, ClosedLoopPlan, LoadPlan
from loadgen.spec.target import Target, stranger_text
from loadgen.statistics.checks import FailFast, P99Bounds, judge, p99_bounds


def run_load_test(
    order: LoadTest, generator: Generator, view: LiveView, stop: Callable[[], bool]
) -> LoadTestResult:
    """Carry the order out. `stop` is called about every half second; True ends it with the result so far."""
    ready_after_s = None
    if order.wait_ready_s is not None:
        view.phase(f"Waiting for {order.target.model_name}", order.wait_ready_s)
        ready_after_s = wait_ready(
            order.target, order.payload, patience_s=order.wait_ready_s, timeout_s=order.plan.timeout_s, stop=stop
        )
        if ready_after_s is None:
            return LoadTestResult(run=None, interrupted=True)
    if order.find_max:
        from loadgen.command.find_max import highest_rate

        found = highest_rate(order, generator, view, stop)
    else:
        found = measure(order, generator, view, stop)
    return replace(found, ready_after_s=ready_after_s)


def measure(order: LoadTest, generator: Generator, view: LiveView, stop: Callable[[], bool]) -> LoadTestResult:
    """Run one load after a warm-up that is not counted, and judge the limits."""
    if isinstance(order.plan, LoadPlan):
        check_memory(order.plan, streamed=order.payload.streamed is not None)
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
    found = LoadTestResult(run=run, checks=violated_by or judge(run.log, order.limits), interrupted=stop())
    cold = run.measurement.cold if order.effective_warmup_s and not found.interrupted else ""
    if not cold or all(check.answer == "met" for check in found.checks):
        return found
    view.note(f"{cold}; the load is sent again", warning=True)  # the warm-up was too short: this was one
    try:
        again = measure(replace(order, warmup_s=0.0), generator, view, stop)
    except (TargetUnreachable, TargetRefused) as error:
        view.note(f"it could not be sent again, so the first time counts: {error}", warning=True)
        return found
    return found if again.interrupted else replace(again, cold=cold)


def warm_up(order: LoadTest, generator: Generator, view: LiveView, stop: Callable[[], bool]) -> None:
    """Load of the same size from another seed, so that first requests and cold caches are not measured."""
    seconds = order.effective_warmup_s
    if seconds == 0:
        return
    view.phase("Warming up", seconds)
    plan = replace(order.plan, duration_s=seconds, seed=order.plan.seed + 1)
    if isinstance(plan, LoadPlan):
        plan = replace(plan, tail_s=0.0)
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
    figures: dict[str, Any] = dict.fromkeys(("measurement", "curve", "timeline"))
    if finding.run is not None:
        figures = _figures(order, finding.run, texts)
    record = LoadTestRecord(
        tool=f"tritune {version('tritune')}",
        started_at=started_at.astimezone(UTC),
        outcome="measured",
        exit_code=0,
        reasons=(),
        notes=(*texts, *_remarks(finding)),
        target=target_record(order.target),
        load=load_record(order, machines=machines),
        checks=finding.checks,
        ready_after_s=finding.ready_after_s,
        accept_observed=order.accept_observed,
        **figures,
        capacity=finding.capacity,
        baseline=None if order.compare is None else order.compare.name,
        comparison=(),
    )
    comparison = () if baseline is None else compare(baseline, record)
    seen = record.measurement
    bounded_after_s = None if seen is None else seen.latency_p99_bounded_after_s
    outcome, reasons = answer(order, finding, comparison, bounded_after_s=bounded_after_s)
    return record.model_copy(
        update={
            "comparison": comparison,
            "outcome": outcome,
            "reasons": (*reasons, *(() if seen is None else seen.in_front)),
            "exit_code": CODES[outcome],
        }
    )


def _remarks(finding: LoadTestResult) -> tuple[str, ...]:
    ready_s = finding.ready_after_s
    ready = () if ready_s is None else (f"the server answered after {format_seconds(ready_s)} of waiting",)
    cold = (f"measured twice, the second run counts: during the first, {finding.cold}",) if finding.cold else ()
    return ready if finding.run is None else (*ready, *cold, *finding.run.measurement.remarks)


_Curve = TypeVar("_Curve")


def _figures(order: LoadTest, run: LoadRun, notes: list[str]) -> dict[str, Any]:
    """The figures of a run and its curves, as fields of the record; adds to the notes."""
    log, confidence = run.log, order.limits.confidence
    timeout_ns = round(order.plan.timeout_s * 1e9)
    duration_s = max(1e-3, run.measurement.duration_s)
    strictest = max(order.limits.latency, key=lambda limit: limit.quantile, default=None)
    return {
        "measurement": measurement_record(
            run.measurement,
            least_ms=int(log.latency_ns.min()) / 1e6 if len(log) else None,
            target=order.target,
            bounds=p99_bounds(log, confidence),
            confidence=confidence,
        ),
        "curve": _drawn(lambda: curve_of(log, timeout_ns), notes),
        "timeline": _drawn(lambda: timeline_of(log, timeout_ns, duration_s, strictest), notes),
        "phases": _drawn(lambda: phases_of(log, order.plan, strictest), notes) or (),
        "token_times": _drawn(lambda: token_times_of(log, timeout_ns, duration_s), notes) or {},
    }


def _drawn(make: Callable[[], _Curve], notes: list[str]) -> _Curve | None:
    """Return the figures for the page alone; None and a note if that fails, so that no verdict is lost."""
    try:
        return make()
    except Exception as error:
        notes.append(f"A curve is left out, by a bug in tritune: {type(error).__name__}: {error}")
        return None


def target_record(target: Target) -> TargetRecord:
    """The target without anything secret."""
    return TargetRecord(
        url=target.shown,
        model_name=target.model_name,
        model_version=target.model_version,
        header_names=tuple(name for name, _ in target.headers),
        certificate_checked=not target.insecure if target.is_tls else None,
    )


def load_record(order: LoadTest, *, machines: int = 1) -> LoadRecord:
    """Return the record of the load."""
    plan = order.plan
    return LoadRecord(
        kind="open" if isinstance(plan, LoadPlan) else "closed",
        arrivals=order.arrivals_text,
        rate_per_s=plan.rate_per_s if isinstance(plan, LoadPlan) and order.first_rate_known else None,
        concurrency=plan.concurrency if isinstance(plan, ClosedLoopPlan) else None,
        max_in_flight=plan.max_in_flight if isinstance(plan, LoadPlan) else None,
        refuse_above=plan.refuse_above if isinstance(plan, LoadPlan) else None,
        duration_s=plan.duration_s,
        warmup_s=order.effective_warmup_s,
        timeout_s=plan.timeout_s,
        most_send_lag_ms=plan.most_send_lag_ms,
        seed=plan.seed,
        processes=order.processes,
        machines=machines,
        batch_size=order.payload.batch_size,
        shapes={name: tuple(shape) for name, shape in order.payload.shapes.items()},
        shared_memory=order.payload.shared_memory,
        format=order.payload.format,
        outputs=order.payload.outputs,
        input_data=None if order.payload.data_file is None else order.payload.data_file.name,
        **({} if order.payload.streamed is None else asdict(order.payload.streamed)),
        good_within_ms={
            part.measure: part.limit_ms
            for limit in order.limits.latency
            if isinstance(limit, StreamLimit)
            for part in limit.parts
        },
    )


def measurement_record(
    seen: Measurement, *, least_ms: float | None, target: Target, bounds: P99Bounds, confidence: float
) -> MeasurementRecord:
    """Return the figures as they are written, with the `bounds` of p99."""
    return MeasurementRecord(
        **seen.figures,
        errors=dict(seen.errors),
        error_example=seen.error_example and stranger_text(seen.error_example, target.secrets),
        planned_rate_per_s=seen.planned_rate_per_s,
        duration_s=seen.duration_s,
        latency_min_ms=least_ms,
        latency_p99_low_ms=bounds.low_ms,
        latency_p99_high_ms=bounds.high_ms,
        latency_p99_bounded_after_s=bounds.needed_s,
        interval_confidence=confidence,
        service_p99_ms=seen.service_p99_ms,
        send_lag_p50_ms=seen.send_lag_p50_ms,
        bytes_sent=seen.client.bytes_sent,
        bytes_received=seen.client.bytes_received,
        connections_opened=seen.client.connections_opened,
        connections_closed=seen.client.connections_closed,
        requests_resent=seen.client.resent,
        client_cpu_share=seen.client.cpu_share,
        client_cpu_s=seen.client.cpu_s,
        server=seen.server,
        gpu=seen.gpu,
        addresses=seen.addresses,
        in_front=seen.in_front,
        streams=seen.streams,
    )
