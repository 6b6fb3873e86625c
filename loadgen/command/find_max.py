"""`--find-max`: search for the highest rate that keeps the limit, then confirm it with load of its own."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from loadgen.command.live import LiveView
from loadgen.command.verdict import LoadTestResult
from loadgen.errors import TargetRefused, TargetUnreachable
from loadgen.measurement.request_log import Measurement, RequestLog, none_if_not_finite
from loadgen.measurement.send_lag import stop_when_late
from loadgen.records.formats import format_ms, format_rate
from loadgen.records.record import CapacityRecord, ProbeRecord
from loadgen.sending.generator import Generator
from loadgen.sending.plan_run import LoadRun, Watch
from loadgen.spec.limits import LatencyLimit, StreamLimit
from loadgen.spec.load_test import LoadTest
from loadgen.spec.plan import LoadPlan
from loadgen.spec.target import without_secrets
from loadgen.statistics.checks import judge
from loadgen.statistics.confirm import Attempt, Confirmation, confirm
from loadgen.statistics.find_capacity import CapacityEstimate, find_capacity
from loadgen.statistics.probe import Probe, ProbeResult
from loadgen.statistics.slo_test import Verdict
from loadgen.wire.in_front import LIMIT

SEARCH_SHARE = 0.5
"""At most this share of the budget goes into the search; the rest goes into the confirmation."""

RESOLUTION = 0.1
"""The search ends when the capacity is known to 10 %: what is confirmed shows the rest."""

_STREAMS_AT_ONCE = 4
"""A search for streams, whose replies take seconds and share a server, begins with this many at once: with the
rare requests with which others begin, the first probe alone would take 20 s."""


def highest_rate(
    order: LoadTest, generator: Generator, view: LiveView, stop: Callable[[], bool]
) -> LoadTestResult:
    """Search and confirm within the seconds of load that the order allows."""
    assert isinstance(order.plan, LoadPlan)
    (limit,) = order.limits.latency
    bench = _Bench(order=order, plan=order.plan, limit=limit, generator=generator, view=view, stop=stop)
    bench.warm_up()
    budget_s = order.plan.duration_s
    streams = limit.kind == "attainment"
    at_first = _STREAMS_AT_ONCE / limit.limit_s if streams else None
    estimate = find_capacity(
        bench,
        limits=(limit,),
        budget_s=SEARCH_SHARE * budget_s,
        seed=order.plan.seed,
        start_rate_per_s=order.plan.rate_per_s if order.first_rate_known else at_first,
        resolution=RESOLUTION,
        stop=bench.ended,
        on_probe=bench.on_probe,
    )
    confirmation = None
    if estimate.known is not None and not bench.ended():
        confirmation = confirm(
            bench,
            estimate.known,
            estimate.steady,
            limit=limit,
            most_per_s=math.inf if estimate.upper_per_s else estimate.rate_per_s or math.inf,
            confidence=order.limits.confidence,
            budget_s=budget_s - estimate.load_s,
            seed=order.plan.seed + 1,
            stop=bench.ended,
            on_attempt=bench.on_attempt,
        )
        if bench.unanswered:
            confirmation = replace(confirmation, reason=bench.unanswered[-1])
    met = None if confirmation is None else confirmation.met
    run = bench.last if met is None else bench.confirmed[met.rate_per_s]
    return LoadTestResult(
        run=run,
        checks=judge(run.log, order.limits, met.verdicts) if run is not None and met is not None else (),
        capacity=capacity_record(limit, estimate, confirmation, bench.measured),
        interrupted=stop(),
    )


@dataclass(slots=True, kw_only=True)
class _Bench:
    """Measures for the search (`loadgen.statistics.probe.Measure`), and shows what it does."""

    order: LoadTest
    plan: LoadPlan
    limit: LatencyLimit
    generator: Generator
    view: LiveView
    stop: Callable[[], bool]
    last: LoadRun | None = None
    confirmed: dict[float, LoadRun] = field(default_factory=dict)  # the runs that met a rate, by that
    measured: list[Measurement] = field(default_factory=list)  # of each probe, then of each confirmation run
    unanswered: list[str] = field(default_factory=list)  # why the server answered no question before the last runs

    def ended(self) -> bool:
        """True if the user ends it, or the server gave no answer twice: what was found is kept."""
        return self.stop() or len(self.unanswered) > 1

    def __call__(self, rate_per_s: float, duration_s: float, seed: int, watch: Watch | None = None) -> Probe:
        self.view.phase(f"Probing {format_rate(rate_per_s)} requests/s", duration_s)
        plan = replace(self.plan, rate_per_s=rate_per_s, duration_s=duration_s, seed=seed)

        def look(log: RequestLog) -> bool:
            self.view.look(log)
            return self.stop() or (watch is not None and watch(log.judged_by(self.limit)))

        try:
            for _ in range(2):  # what is executed for the first time says nothing; the second time it is warm
                run = self.generator.run(
                    self.order.target,
                    plan,
                    payload=self.order.payload,
                    limit_ms=self.limit.limit_ms,
                    watch=stop_when_late(look, plan, self.limit.limit_ms),
                )
                if not run.measurement.cold or self.stop():
                    break
                self.view.note(f"probing {format_rate(rate_per_s)}/s again: {run.measurement.cold}")
        except (TargetUnreachable, TargetRefused) as error:
            if self.last is None or not self.measured:
                raise
            why = without_secrets(str(error).partition("\n")[0], self.order.target.secrets)
            self.unanswered.append(why)
            return Probe(log=self.last.log.rows(0, 0), overloaded=False, problems=(why,))
        self.last, self.unanswered = run, []
        log = run.log.judged_by(self.limit)  # of streams, in which the search sees latencies
        return Probe(log=log, overloaded=run.stopped == "overloaded", problems=run.measurement.problems)

    def warm_up(self) -> None:
        """Warm up at a rate so low that requests rarely overlap."""
        seconds = self.order.effective_warmup_s
        if seconds > 0 and not self.stop():
            self(250.0 / self.limit.limit_ms + 2.0 / seconds, seconds, self.plan.seed + 2)

    def _keep(self) -> None:
        assert self.last is not None
        seen = self.last.measurement
        self.measured.append(replace(seen, n=0, errors={}, in_front=()) if self.unanswered else seen)

    def on_probe(self, seen: ProbeResult) -> None:
        """A probe has ended."""
        self._keep()
        self.view.note(f"{format_rate(seen.rate_per_s)}/s: {_word(seen)}, {_p_text(seen.verdict, self.limit)}")

    def on_attempt(self, attempt: Attempt) -> None:
        """A confirmation run has ended."""
        self._keep()
        if attempt.met and self.last is not None:
            self.confirmed[attempt.rate_per_s] = self.last
        seen = f"{_word(attempt)}, {_p_text(attempt.verdict, self.limit)}"
        self.view.note(f"confirming {format_rate(attempt.rate_per_s)}/s: {seen}")


def capacity_record(
    limit: LatencyLimit,
    estimate: CapacityEstimate,
    confirmation: Confirmation | None,
    measured: Sequence[Measurement],
) -> CapacityRecord:
    """Return the result of the search. `measured` has the runs of all its probes, then the confirmation runs."""
    met = None if confirmation is None else confirmation.met
    attempts = () if confirmation is None else confirmation.attempts
    runs: tuple[ProbeResult | Attempt, ...] = (*estimate.probes, *attempts)
    per_token = isinstance(limit, StreamLimit) and any(part.measure == "tpot" for part in limit.parts)
    open_above = per_token and any(one.streams is not None and one.streams.at_once for one in measured)
    return CapacityRecord(
        quantile=limit.quantile,
        limit=limit.text,
        limit_ms=None if limit.kind == "attainment" else limit.limit_ms,
        certified_rate_per_s=None if met is None else met.rate_per_s,
        estimate_per_s=estimate.rate_per_s,
        low_per_s=estimate.lower_per_s,
        high_per_s=estimate.upper_per_s,
        lone_latency_ms=estimate.lone_latency_ms,
        inconclusive=met is None and (estimate.outcome != "too_slow" or open_above),
        seconds=estimate.load_s + (0.0 if confirmation is None else confirmation.load_s),
        probes=tuple(_probe_record(run, one) for run, one in zip(runs, measured, strict=True)),
        reason=_reason(limit, estimate, confirmation) + _why_it_failed(measured),
    )


def _reason(limit: LatencyLimit, estimate: CapacityEstimate, confirmation: Confirmation | None) -> str:
    if confirmation is not None and confirmation.met is not None:
        attempt = confirmation.met
        return (
            f"{format_rate(attempt.rate_per_s)} requests/s meet {limit.text}, confirmed with "
            f"{attempt.verdict.n:,} requests of their own{_slower_when_idle(limit, estimate.probes)}"
        )
    if confirmation is not None:
        return _unconfirmed(limit, estimate, confirmation)
    if estimate.outcome == "too_slow":
        return f"no rate was found that meets {limit.text}: {estimate.reason}"
    fix = "" if estimate.outcome == "untrusted" else "; a longer --duration gives it more load"
    return f"no highest rate was found: {estimate.reason}{fix}"


def _unconfirmed(limit: LatencyLimit, estimate: CapacityEstimate, confirmation: Confirmation) -> str:
    """Return the prediction of the search; without it, if that rate or a lower one violated the limit."""
    assert estimate.rate_per_s is not None
    violated = [one.rate_per_s for one in confirmation.attempts if one.violated]
    violated += [one.rate_per_s for one in estimate.probes if _word(one) in ("violated", "overloaded")]
    if (lowest := min(violated, default=math.inf)) > estimate.rate_per_s:
        rate = format_rate(estimate.rate_per_s)
        return f"about {rate} requests/s are predicted to meet {limit.text}; not confirmed: {confirmation.reason}"
    return (
        f"no rate was confirmed to meet {limit.text}: {format_rate(lowest)}/s violated it; {confirmation.reason}"
    )


def _slower_when_idle(limit: LatencyLimit, probes: Sequence[ProbeResult]) -> str:
    """Return that lower rates are not covered, if those that were probed did not meet the limit; else empty."""
    lowest_met = min((one.rate_per_s for one in probes if one.met), default=0.0)
    slow = [one for one in probes if not one.problems and one.rate_per_s < lowest_met]
    if not slow:
        return ""
    most = max(slow, key=lambda one: one.rate_per_s)
    return f", but it is slower when less busy: {_p_text(most.verdict, limit)} at {format_rate(most.rate_per_s)}/s"


def _why_it_failed(measured: Sequence[Measurement]) -> str:
    """Return the failures of all runs, and whose limit it was if it was not the server's; empty if none failed."""
    errors: Counter[str] = Counter()
    for one in measured:
        errors.update(one.errors)
    if not errors:
        return ""
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in errors.most_common(3))
    requests = sum(one.n for one in measured)
    limited = any(LIMIT in text for one in measured for text in one.in_front)
    whose = f", at {LIMIT}, whose own capacity may be higher" if limited else ""
    return f"; of {requests:,} requests in all, {kinds}{whose}"


def _probe_record(run: ProbeResult | Attempt, measured: Measurement) -> ProbeRecord:
    of_shares = run.verdict.limit.kind == "attainment"
    return ProbeRecord(
        rate_per_s=run.rate_per_s,
        seconds=run.load_s,
        requests=run.verdict.n,
        violations=run.verdict.violations,
        latency_ms=None if of_shares else none_if_not_finite(run.verdict.latency_ms),
        answer=_word(run),
        confirms=isinstance(run, Attempt),
        errors=dict(measured.errors),
    )


def _word(seen: ProbeResult | Attempt) -> str:
    """Return a run's result as text; most probes are too short for a verdict, and show only a tendency."""
    if seen.problems:
        return "client late" if seen.verdict.n else "no answer"
    if isinstance(seen, Attempt) and seen.met:
        return "confirmed"
    if seen.overloaded or seen.verdict.answer != "inconclusive" or isinstance(seen, Attempt):
        return "overloaded" if seen.overloaded else seen.verdict.answer
    return "looks met" if seen.met else "looks violated"


def _p_text(verdict: Verdict, limit: LatencyLimit) -> str:
    if limit.kind == "attainment":
        return f"{100 * limit.quantile:g} % within {verdict.latency_ms / limit.limit_ms:.3g} of the limits"
    return f"{limit.name} {format_ms(none_if_not_finite(verdict.latency_ms))} ms"
