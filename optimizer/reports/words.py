"""Figures as text, the same in the page and in Markdown."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from optimizer.report import against_default, disturbed_by_others, dollars, promise_text
from search.neighbours import mark_of
from search.words import quantile_name, record_text

if TYPE_CHECKING:
    from optimizer.reports.evidence import Evidence
    from search.records import CertificateRecord, TrialRecord

UNKNOWN = "–"

KNOBS = {
    "engine": "engine",
    "max_batch_size": "maximum batch size",
    "instance_count": "instances",
    "intra_op_threads": "threads each",
    "max_queue_delay_us": "queue delay",
    "preferred_batch_sizes": "preferred batch sizes",
    "cuda_graph_batch_sizes": "CUDA graphs",
}


def rate(per_s: float | None) -> str:
    """With thousands separated, and decimals only for small rates."""
    if per_s is None or not math.isfinite(per_s):
        return UNKNOWN
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}"


def ms(value: float | None) -> str:
    """Three significant digits, as many more as it takes above 1000."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def money(usd: float | None) -> str:
    """Dollars, three digits at least."""
    return UNKNOWN if usd is None else dollars(usd)


def certified_p99(certificate: CertificateRecord) -> str:
    """`22.4 ms (19.8 to 31.4 at 95 %)`, and the same for every further limit."""
    first = (certificate.p99_ms, certificate.p99_low_ms, certificate.p99_high_ms)
    more = [
        f"; {quantile_name(seen.quantile)} {ms(seen.latency_ms)} ms ({ms(seen.latency_low_ms)} to "
        f"{ms(seen.latency_high_ms)})"
        for seen in certificate.also
    ]
    at, low, high = map(ms, first)
    return f"{at} ms ({low} to {high} at {100 * certificate.confidence:.3g} %){''.join(more)}"


def headline(evidence: Evidence) -> str:
    """The answer in a few words."""
    found = evidence.found
    if found is None:
        return f"No configuration is certified to keep {promise_text(evidence.slo)}"
    certificate = found.winner.certificate
    assert certificate is not None
    traffic = f", for {found.demand.text}" if found.demand.text else ""
    return f"{rate(certificate.rate_per_s)} requests/s with {promise_text(evidence.slo)}{traffic}"


def saving(evidence: Evidence) -> str:
    """What the recommendation saves against the baseline, or why that is not known."""
    found = evidence.found
    if found is None:
        return _why_nothing(evidence)
    beside = against_default(found)
    if beside is not None:
        return f"{beside}."
    if evidence.baseline is None:
        return "Nothing to save: Triton's default configuration is the best that was found."
    cost, other = found.cost, found.cost.baseline_cost_per_million_inferences_usd
    if found.gain is None or other is None:
        about = f", about {rate(evidence.baseline.rate_at_limit_per_s)}/s by estimate, was"
        return f"The saving is not known: the rate of Triton's default configuration{about} not certified."
    now = cost.cost_per_million_inferences_usd
    change = 1 - now / other
    if abs(change) < 0.005:
        return f"As cheap as Triton's default configuration: {money(now)} per million inferences."
    direction = "cheaper" if change > 0 else "dearer"
    return (
        f"{100 * abs(change):.0f} % {direction} than Triton's default configuration: {money(now)} instead of "
        f"{money(other)} per million inferences; {found.gain:.2f} times its certified rate."
    )


def caveat(evidence: Evidence) -> str | None:
    """What keeps the promise from being a firm one; None where nothing does."""
    certificate = None if evidence.found is None else evidence.found.winner.certificate
    if certificate is None or certificate.caveat is None:
        return None
    return f"Not a firm promise yet: {certificate.caveat}."


def disturbed(evidence: Evidence) -> str | None:
    """What others took of the processors, and what follows; None where they took too little to matter."""
    return None if evidence.found is None else disturbed_by_others(evidence.found)


def reason(trial: TrialRecord) -> str:
    """Why the trial ended as it did, and who disturbed it."""
    mark = mark_of(trial.neighbours)
    return trial.reason if mark is None else f"{trial.reason} ({mark})"


def replicas_needed(evidence: Evidence) -> str | None:
    """How many replicas the rate that was asked for takes; None where none was."""
    cost = None if evidence.found is None else evidence.found.cost
    if cost is None or cost.replicas is None or cost.total_usd_per_hour is None:
        return None
    plural = "s" if cost.replicas > 1 else ""
    return (
        f"{rate(cost.rate_to_serve_per_s)} requests/s take {cost.replicas} replica{plural}: "
        f"{money(cost.total_usd_per_hour)} an hour."
    )


def time_summary(evidence: Evidence) -> str:
    """What takes the time and what would help; "" where nobody said."""
    used = None if evidence.found is None else evidence.found.time_use
    return "" if used is None else used.summary


def layers_note(evidence: Evidence) -> str:
    """How the layers' times were taken; "" where they were not."""
    used = None if evidence.found is None else evidence.found.time_use
    profile = None if used is None else used.winner
    if profile is None or not profile.layers:
        return ""
    return (
        f"The slowest of {profile.layer_count} layers, by the profile of {profile.profiler}: the engine alone, "
        f"batches of {profile.batch_size}, random inputs."
    )


def knobs(evidence: Evidence, trial: TrialRecord) -> str:
    """The trial's configuration."""
    return record_text(trial.config, on_gpu=evidence.on_gpu)


def _why_nothing(evidence: Evidence) -> str:
    trials = evidence.trials
    if not trials:
        return "No trial was finished."
    if any(trial.state == "complete" for trial in trials):
        return (
            f"The run ended before a rate was certified, after {len(trials)} trials. "
            f"Go on with optimize --resume {evidence.directory}"
        )
    alone = [(t.lone_latency_ms, t) for t in trials if t.state == "infeasible" and t.lone_latency_ms is not None]
    if not alone:
        return f"None of {len(trials)} trials could be measured to the limit; their reasons are below."
    fastest_ms, best = min(alone, key=lambda pair: pair[0])
    return (
        f"The fastest of {len(trials)} trials, {knobs(evidence, best)}, answers single requests on an idle server "
        f"in {ms(fastest_ms)} ms."
    )
