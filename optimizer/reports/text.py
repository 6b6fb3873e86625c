"""The sentences of a report, the same in the page, in Markdown and on the terminal."""

from __future__ import annotations

from loadgen.measurement.cpu_contention import mark_of
from loadgen.records.formats import format_dollars, format_ms, format_rate, format_seconds
from loadgen.spec.limits import quantile_name
from optimizer.reports.evidence import Evidence
from search.labels import memory_text, record_text
from search.records.recommendation import RecommendationRecord
from search.records.slo import Slo
from search.records.trial import TrialRecord
from search.simulator.surrogate import FAR_BELOW

KNOBS = {
    "engine": "engine",
    "max_batch_size": "maximum batch size",
    "instance_count": "instances",
    "intra_op_threads": "threads each",
    "max_queue_delay_us": "queue delay",
    "preferred_batch_sizes": "preferred batch sizes",
    "cuda_graph_batch_sizes": "CUDA graphs",
}


def headline(evidence: Evidence) -> str:
    """Return the answer in a few words."""
    found = evidence.found
    if found is None:
        return f"No configuration is certified for {limits_text(evidence.slo)}"
    certificate = found.winner.certificate
    assert certificate is not None
    traffic = f", for {found.workload.text}" if found.workload.text else ""
    return f"{format_rate(certificate.rate_per_s)} requests/s with {limits_text(evidence.slo)}{traffic}"


def saving(evidence: Evidence) -> str:
    """Return the saving compared with Triton's default, or why it is not known."""
    found = evidence.found
    if found is None:
        return _why_nothing(evidence)
    against = against_default(found)
    if against is not None:
        return f"{against}."
    if evidence.baseline is None:
        return "Nothing to save: Triton's default configuration is the best that was found."
    cost, other = found.cost, found.cost.baseline_cost_per_million_inferences_usd
    if found.gain is None or other is None:
        about = f", about {format_rate(evidence.baseline.rate_at_limit_per_s)}/s by estimate, was"
        return f"The saving is not known: the rate of Triton's default configuration{about} not certified."
    now = cost.cost_per_million_inferences_usd
    change = 1 - now / other
    if abs(change) < 0.005:
        return f"As cheap as Triton's default configuration: {format_dollars(now)} per million inferences."
    direction = "cheaper" if change > 0 else "dearer"
    return (
        f"{100 * abs(change):.0f} % {direction} than Triton's default configuration: {format_dollars(now)} "
        f"instead of {format_dollars(other)} per million inferences; {found.gain:.2f} times its certified rate."
    )


def caveat(evidence: Evidence) -> str | None:
    """Return the caveat of the certificate as a sentence; None without one."""
    certificate = None if evidence.found is None else evidence.found.winner.certificate
    if certificate is None or certificate.caveat is None:
        return None
    return f"Caveat: {certificate.caveat}."


def unseen_phases(found: RecommendationRecord) -> str | None:
    """Return which slow phases of the machine the certificate does not cover; None if enough were seen."""
    certificate = found.winner.certificate
    if certificate is None or certificate.unseen_every_s is None:
        return None
    seconds = format_seconds(max(1, round(certificate.unseen_every_s)))
    return f"Slow phases of the machine that come less than once in {seconds} were not seen, and are not covered."


def share_of_engine(found: RecommendationRecord) -> tuple[str, bool] | None:
    """Return the certified rate as a share of the engine's own, and True if it is far below; None if not measured.

    If it is, the text has the reason: the time, what closed loops got through if that is far below too, or the
    largest part of a request's time; and what each protocol lets through.
    """
    certificate, measured = found.winner.certificate, found.winner.measurement
    if certificate is None or found.standalone_per_s is None or found.objective.rate_per_s is not None:
        return None
    share = certificate.rate_per_s / found.standalone_per_s
    per_cent = format(100 * share, ".0f" if share > FAR_BELOW else ".2g")
    text = f"{per_cent} % of the {format_rate(found.standalone_per_s)}/s that its engine does standalone"
    if share >= FAR_BELOW:
        return text, False
    estimated_per_s = found.winner.rate_at_limit_per_s or 0.0
    if estimated_per_s >= FAR_BELOW * found.standalone_per_s:
        return (
            f"{text}; {format_rate(estimated_per_s)}/s are estimated, which could not be certified in the time",
            True,
        )
    let_through_per_s = _let_through_per_s(found.winner)
    if let_through_per_s is not None and let_through_per_s < FAR_BELOW * found.standalone_per_s:
        return (
            f"{text}; its clients got {format_rate(let_through_per_s)}/s through at most{_front_ends(found)}",
            True,
        )
    stages = {} if measured is None else measured.stages_ms
    known = {stage: ms for stage, ms in stages.items() if ms is not None}
    if known:
        largest = max(known, key=lambda stage: known[stage])
        whole, part = format_ms(sum(known.values())), format_ms(known[largest])
        text += f"; of a request's {whole} ms, {part} are {largest}"
    return text + _front_ends(found), True


def _front_ends(found: RecommendationRecord) -> str:
    """Return what each protocol let through, the most first; "" if that was not measured."""
    names = {"none": "", "system": " with --shared-memory system"}
    by_rate = sorted(found.front_ends, key=lambda one: one.requests_per_s, reverse=True)
    each = (
        f"--protocol {one.protocol}{names[one.shared_memory]} {format_rate(one.requests_per_s)}/s"
        for one in by_rate
    )
    return f"; busy clients get through here: {', '.join(each)}" if by_rate else ""


def _let_through_per_s(trial: TrialRecord) -> float | None:
    predicted = None if trial.why is None else trial.why.prediction
    return None if predicted is None else predicted.service_times.let_through_per_s


def remarks(found: RecommendationRecord) -> tuple[str | None, ...]:
    """Return the sentences on the answer as a whole; None for those that do not apply."""
    of_engine = share_of_engine(found)
    far_below = of_engine is not None and of_engine[1]
    share = None if of_engine is None else f"It is {'only ' if far_below else ''}{of_engine[0]}."
    rows = in_rows(found)
    return found.reason, rows and f"{rows}.", share, unseen_phases(found)


def in_rows(found: RecommendationRecord) -> str | None:
    """Return rate and cost in rows and in requests; None if a request has one row."""
    fixed, certificate = found.model.fixed_rows, found.winner.certificate
    rows = fixed * found.workload.rows_per_request
    if rows == 1 or certificate is None:
        return None
    usd = found.cost.cost_per_million_inferences_usd / fixed
    rate = f"{format_rate(rows * certificate.rate_per_s)} rows/s, {rows} a request"
    text = f"{rate}: {format_dollars(usd)} per million rows, {format_dollars(rows * usd)} per million requests"
    return text if fixed == 1 else f"{text}, if the leading {fixed} of the model's file are rows"


def disturbed(evidence: Evidence) -> str | None:
    """Return the CPU contention of the run and its effect; None if there was too little to matter."""
    return None if evidence.found is None else disturbed_by_others(evidence.found)


def replicas_needed(evidence: Evidence) -> str | None:
    """Return the number of replicas for the wanted rate; None if no rate was wanted."""
    cost = None if evidence.found is None else evidence.found.cost
    if cost is None or cost.replicas is None or cost.total_usd_per_hour is None:
        return None
    plural = "s" if cost.replicas > 1 else ""
    return (
        f"{format_rate(cost.rate_to_serve_per_s)} requests/s take {cost.replicas} replica{plural}: "
        f"{format_dollars(cost.total_usd_per_hour)} an hour."
    )


def time_summary(evidence: Evidence) -> str:
    """Return the paragraph on where the time goes; "" if there are no timings."""
    used = None if evidence.found is None else evidence.found.time_use
    return "" if used is None else used.summary


def layers_note(evidence: Evidence) -> str:
    """Return how the layers were timed; "" if they were not."""
    used = None if evidence.found is None else evidence.found.time_use
    profile = None if used is None else used.winner
    if profile is None or not profile.layers:
        return ""
    return (
        f"The slowest of {profile.layer_count} layers, by the profile of {profile.profiler}: standalone, "
        f"batches of {profile.batch_size}, random inputs."
    )


def knobs(evidence: Evidence, trial: TrialRecord) -> str:
    """Return the trial's configuration in words."""
    return record_text(trial.config, on_gpu=evidence.on_gpu)


def _why_nothing(evidence: Evidence) -> str:
    trials, outcome = evidence.trials, evidence.outcome
    if outcome is not None:
        return f"{outcome.status_reason} {outcome.advice}".strip()
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
        f"in {format_ms(fastest_ms)} ms."
    )


def against_default(found: RecommendationRecord) -> str | None:
    """Return latency or energy compared with Triton's default if it was the objective; None if cost was."""
    default = "Triton's default configuration"
    if found.objective.name == "latency":
        winner = found.winner.certificate
        baseline = None if found.baseline is None else found.baseline.certificate
        assert winner is not None
        latency = f"{quantile_name(winner.first.quantile)} {format_ms(winner.first.latency_ms)} ms"
        if found.baseline is not None and found.baseline.number == found.winner.number:
            return f"{latency}, with {default}"
        if baseline is None:
            return f"{latency}; {default} is not certified at that rate"
        return f"{latency} instead of {format_ms(baseline.first.latency_ms)} ms of {default}"
    cost = found.cost
    mine, other = cost.energy_kwh_per_million_inferences, cost.baseline_energy_kwh_per_million_inferences
    if found.objective.name == "cost" or mine is None:
        return None
    instead = "" if other is None else f" instead of {other:.3g} kWh of {default}"
    return f"{mine:.3g} kWh per million inferences, of the GPUs only{instead}"


def disturbed_by_others(found: RecommendationRecord) -> str | None:
    """Return the CPU contention of a recommendation and its effect; None if there was too little to matter."""
    for trial, effect in (
        (found.winner, "while this rate was certified: the certified rate may be too low for this machine"),
        (found.baseline, "while Triton's default was certified: the gain may be smaller than it looks"),
    ):
        mark = None if trial is None or trial.certificate is None else mark_of(trial.certificate.contention)
        if mark is not None:
            return f"{mark[0].upper()}{mark[1:]} {effect}."
    mark = mark_of(found.contention)
    if mark is None:
        return None
    return f"{mark[0].upper()}{mark[1:]} in all: on a quiet machine another configuration may be better."


def limits_text(slo: Slo) -> str:
    """Return such as `p99 within 50 ms`, the other limits, and the memory limit."""
    return slo.text if slo.max_memory_bytes is None else f"{slo.text} in {memory_text(slo.max_memory_bytes)}"
