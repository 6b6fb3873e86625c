"""One short load run of a trial, abandoned once a limit is certainly violated, and reported as an event."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.measurement.request_log import RequestLog, none_if_not_finite
from loadgen.spec.limits import LatencyLimit
from loadgen.statistics.capacity_fit import Probe, ProbeResult, evaluate_probe
from loadgen.statistics.checks import change_of
from loadgen.statistics.slo_test import certify_each, combined_answer
from search.records.trial import LoadRunRecord, run_word
from search.trials import events
from search.trials.context import TrialContext


def run_load(
    context: TrialContext, rate_per_s: float, seconds: float, *, number: int, repeat: int
) -> tuple[Probe, ProbeResult, int]:
    """Run load; return the probe, its result and its seed. Each `repeat` of a trial has another seed."""
    slo = context.slo

    def hopeless(requests: RequestLog) -> bool:
        return context.stop() or combined_answer(certify_each(requests, slo.limits)) == "violated"

    seed = context.seed_of(number, repeat)
    probe = context.bench.measure(rate_per_s, seconds, seed, hopeless)
    seen = evaluate_probe(probe, rate_per_s, slo.limits)
    return probe, seen, seed


def emit_probed(on_event: events.OnEvent, number: int, seen: ProbeResult, *, met: bool) -> None:
    """Emit the event of a trial's run; `met` is its tendency."""
    on_event(
        events.Probed(
            number=number,
            rate_per_s=seen.rate_per_s,
            latency_ms=none_if_not_finite(seen.first.latency_ms),
            verdict=run_word(
                seen.verdict.answer,
                met=met,
                overloaded=seen.overloaded,
                late=seen.verdict.violations,
                n=seen.verdict.n,
            ),
            quantile=seen.first.limit.quantile,
        )
    )


def load_run_of(seen: ProbeResult, log: RequestLog, limits: Sequence[LatencyLimit], *, seed: int) -> LoadRunRecord:
    """Return the record of one load run of a trial, with its log."""
    return LoadRunRecord(
        rate_per_s=seen.rate_per_s,
        latency_ms=none_if_not_finite(seen.first.latency_ms),
        met=seen.reading.met,
        trusted=not seen.problems,
        answer=seen.verdict.answer,
        seconds=seen.load_s,
        requests=seen.verdict.n,
        violations=seen.verdict.violations,
        overloaded=seen.overloaded,
        seed=seed,
        problems=seen.problems,
        change=None if seen.overloaded else change_of(log, limits),
    )
