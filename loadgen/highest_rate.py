"""`--find-max`: search for the highest rate that keeps the limit, then confirm it with load of its own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from loadgen.capacity import CapacityEstimate, Probe, find_capacity
from loadgen.confirm import Attempt, Confirmation, confirm
from loadgen.finding import Finding
from loadgen.judge import judge
from loadgen.lateness import until_late
from loadgen.measurement import known
from loadgen.plan import LoadPlan
from loadgen.reports import words
from loadgen.reports.record import CapacityRecord, ProbeRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from loadgen.certify import Verdict
    from loadgen.live import LiveView
    from loadgen.loadtest import Generator
    from loadgen.measurement import RequestLog
    from loadgen.order import LatencyLimit, Order
    from loadgen.probing import Seen
    from loadgen.runner import LoadRun, Watch

SEARCH_SHARE = 0.5
"""Of the budget; what is left of it goes into the confirmation."""

_LOWEST_SHARE = 0.5  # of the estimate: a confirmation below would mean that the search was wrong


def highest_rate(order: Order, generator: Generator, view: LiveView, stop: Callable[[], bool]) -> Finding:
    """Search and confirm within the seconds of load that the order allows."""
    assert isinstance(order.plan, LoadPlan)
    (limit,) = order.limits.latency
    bench = _Bench(order=order, plan=order.plan, limit=limit, generator=generator, view=view, stop=stop)
    bench.warm_up()
    budget_s = order.plan.duration_s
    estimate = find_capacity(
        bench,
        limit_ms=limit.limit_ms,
        quantile=limit.quantile,
        budget_s=SEARCH_SHARE * budget_s,
        seed=order.plan.seed,
        start_rate_per_s=order.plan.rate_per_s if order.first_rate_known else None,
        stop=stop,
        on_probe=bench.on_probe,
    )
    confirmation = None
    if estimate.rate_per_s is not None and not stop():
        confirmation = confirm(
            bench,
            estimate.rate_per_s,
            limit_ms=limit.limit_ms,
            quantile=limit.quantile,
            confidence=order.limits.confidence,
            budget_s=budget_s - estimate.load_s,
            seed=order.plan.seed + 1,
            floor_per_s=_LOWEST_SHARE * estimate.rate_per_s,
            stop=stop,
            on_attempt=bench.on_attempt,
        )
    run = bench.last
    kept = confirmation is not None and confirmation.kept is not None
    return Finding(
        run=run,
        checks=judge(run.log, order.limits) if run is not None and kept else (),
        capacity=capacity_record(limit, estimate, confirmation),
        interrupted=stop(),
    )


@dataclass(slots=True, kw_only=True)
class _Bench:
    """Measures for the search (`loadgen.capacity.Measure`), and shows what it does."""

    order: Order
    plan: LoadPlan
    limit: LatencyLimit
    generator: Generator
    view: LiveView
    stop: Callable[[], bool]
    last: LoadRun | None = field(default=None)

    def __call__(self, rate_per_s: float, duration_s: float, seed: int, watch: Watch | None = None) -> Probe:
        self.view.phase(f"Probing {words.rate(rate_per_s)} requests/s", duration_s)
        plan = replace(self.plan, rate_per_s=rate_per_s, duration_s=duration_s, seed=seed)

        def look(log: RequestLog) -> bool:
            self.view.look(log)
            return self.stop() or (watch is not None and watch(log))

        run = self.generator.run(
            self.order.target,
            plan,
            payload=self.order.payload,
            limit_ms=self.limit.limit_ms,
            watch=until_late(look, plan, self.limit.limit_ms),
        )
        self.last = run
        return Probe(log=run.log, overloaded=run.stopped == "overloaded", problems=run.measurement.problems)

    def warm_up(self) -> None:
        """First requests may be slow; so few of them that they hardly meet."""
        seconds = self.order.effective_warmup_s
        if seconds > 0 and not self.stop():
            self(250.0 / self.limit.limit_ms + 2.0 / seconds, seconds, self.plan.seed + 2)

    def on_probe(self, seen: Seen) -> None:
        """A probe has ended."""
        self.view.note(f"{words.rate(seen.rate_per_s)}/s: {_word(seen)}, {_p_text(seen.verdict, self.limit)}")

    def on_attempt(self, attempt: Attempt) -> None:
        """A confirmation run has ended."""
        answer = "kept" if attempt.kept else "not confirmed"
        self.view.note(
            f"confirming {words.rate(attempt.rate_per_s)}/s: {answer}, {_p_text(attempt.verdict, self.limit)}"
        )


def capacity_record(
    limit: LatencyLimit, estimate: CapacityEstimate, confirmation: Confirmation | None
) -> CapacityRecord:
    """What the search found, in one value."""
    kept = None if confirmation is None else confirmation.kept
    attempts = () if confirmation is None else confirmation.attempts
    return CapacityRecord(
        quantile=limit.quantile,
        certified_rate_per_s=None if kept is None else kept.rate_per_s,
        estimate_per_s=estimate.rate_per_s,
        low_per_s=estimate.lower_per_s,
        high_per_s=estimate.upper_per_s,
        lone_latency_ms=estimate.lone_latency_ms,
        undecided=kept is None and estimate.outcome != "too_slow",
        seconds=estimate.load_s + (0.0 if confirmation is None else confirmation.load_s),
        probes=tuple(_probe_record(seen, _word(seen)) for seen in estimate.probes)
        + tuple(_probe_record(one, "confirmed" if one.kept else "not confirmed") for one in attempts),
        reason=_reason(limit, estimate, confirmation),
    )


def _reason(limit: LatencyLimit, estimate: CapacityEstimate, confirmation: Confirmation | None) -> str:
    if confirmation is not None and confirmation.kept is not None:
        attempt = confirmation.kept
        return (
            f"{words.rate(attempt.rate_per_s)} requests/s keep {limit.text}, confirmed with "
            f"{attempt.verdict.n:,} requests of their own"
        )
    if confirmation is not None:
        about = words.rate(estimate.rate_per_s)
        return (
            f"about {about} requests/s should keep {limit.text}, but that was not confirmed: {confirmation.reason}"
        )
    if estimate.outcome == "too_slow":
        return f"no rate keeps {limit.text}: {estimate.reason}"
    return f"no highest rate was found: {estimate.reason}; a longer --duration gives it more load"


def _probe_record(run: Seen | Attempt, answer: str) -> ProbeRecord:
    return ProbeRecord(
        rate_per_s=run.rate_per_s,
        seconds=run.load_s,
        requests=run.verdict.n,
        violations=run.verdict.violations,
        latency_ms=known(run.verdict.latency_ms),
        answer=answer,
    )


def _word(seen: Seen) -> str:
    """What a probe says; most are too short for a verdict, and say which side of the limit they look to be on."""
    if seen.problems:
        return "client late"
    if seen.overloaded or seen.verdict.answer != "undecided":
        return "overloaded" if seen.overloaded else seen.verdict.answer
    return "looks kept" if seen.reading.kept else "looks broken"


def _p_text(verdict: Verdict, limit: LatencyLimit) -> str:
    return f"{limit.name} {words.ms(known(verdict.latency_ms))} ms"
