"""The figures and sentences of a bundle, for people and machines."""

from __future__ import annotations

import math

from deploy.plan import Plan
from deploy.scaling import HPA_SYNC_S, HPA_TOLERANCE, RATE_WINDOW_S, SCRAPE_INTERVAL_S
from loadgen.records.formats import format_ms, format_rate
from loadgen.spec.limits import quantile_name
from search.labels import memory_text
from search.records.certificate import CertifiedLatencyRecord

DRIFT = 1.25
"""An alert fires if a million inferences cost more than 1.25 times the planned amount."""


def figures(plan: Plan) -> dict[str, str]:
    """Return numbers as text for people; names that end in `_exact` are for machines."""
    found, scaling, certificate = plan.found, plan.scaling, plan.certificate
    baseline = found.baseline.certificate if found.baseline is not None else None
    cost = found.cost
    return {
        "certified": format_rate(certificate.rate_per_s),
        "certified_exact": f"{certificate.rate_per_s:.9g}",
        "confidence_percent": f"{100 * certificate.confidence:.3g}",
        "p99": format_ms(certificate.first.latency_ms),
        "p99_low": format_ms(certificate.first.latency_low_ms),
        "p99_high": format_ms(certificate.first.latency_high_ms),
        "limit_ms": f"{found.slo.first.limit_ms:.9g}",
        "slo": found.slo.text,
        "further_words": "".join(f"; {_latency_words(seen)}" for seen in certificate.latencies[1:]),
        "usd_per_hour": f"{cost.price.usd_per_hour:.9g}",
        "price_words": _price_words(plan),
        "certified_usd": f"{cost.cost_per_million_inferences_usd:.4g}",
        "planned_usd": f"{plan.cost_per_million_at_least_load_usd:.4g}",
        "drift_usd": f"{DRIFT * plan.cost_per_million_at_least_load_usd:.9g}",
        "baseline_usd": ""
        if cost.baseline_cost_per_million_inferences_usd is None
        else f"{cost.baseline_cost_per_million_inferences_usd:.4g}",
        "baseline_rate": "" if baseline is None else format_rate(baseline.rate_per_s),
        "hourly_usd": f"{scaling.min_replicas * cost.price.usd_per_hour:.4g}",
        "rate": format_rate(scaling.traffic.rate_per_s),
        "target": format_rate(scaling.target_rate_per_s),
        "target_exact": f"{scaling.target_rate_per_s:.9g}",
        "target_milli": str(max(1, math.floor(1000 * scaling.target_rate_per_s))),
        "scaling_words": scaling_words(plan),
        "shm_mib": str(plan.resources.shm_mib),
        "memory_words": _memory_words(plan),
        "machine": _machine_words(plan),
    }


def scaling_words(plan: Plan) -> str:
    """Return the paragraph on the autoscaler's target."""
    scaling, traffic = plan.scaling, plan.scaling.traffic
    start = {"measured": "measured, without pulling its image or adding a node"}.get(
        scaling.start_source, scaling.start_source
    )
    certified, target = format_rate(scaling.certified_rate_per_s), format_rate(scaling.target_rate_per_s)
    rate, peak = format_rate(traffic.rate_per_s), format_rate(traffic.peak_rate_per_s)
    text = (
        f"One replica is certified for {certified} requests/s. Another one is started above {target} each, which "
        f"leaves {100 * scaling.headroom:.1f} % free, because it comes {scaling.reaction_s:.3g} s late: "
        f"{RATE_WINDOW_S / 2:g} s is half the window of the query, {SCRAPE_INTERVAL_S:g} s the age of a sample, "
        f"{HPA_SYNC_S:g} s the autoscaler's period, {scaling.start_s:.3g} s the start of a replica ({start}). "
        f"Growing from {rate} to {peak} requests/s within {traffic.ramp_s:g} s, the traffic becomes "
        f"{scaling.lead:.4g} times as high meanwhile, and the autoscaler overlooks {100 * HPA_TOLERANCE:g} %: "
        f"{certified} / ({1 + HPA_TOLERANCE:g} x {scaling.lead:.4g}). At least {scaling.min_replicas}: enough for "
        f"{rate}/s, and one to spare. At most {scaling.max_replicas}: the same for {peak}/s."
    )
    if traffic.assumed:
        text += f" Assumed: {'; '.join(traffic.assumed)}."
    return text


def _latency_words(seen: CertifiedLatencyRecord) -> str:
    at, low, high = map(format_ms, (seen.latency_ms, seen.latency_low_ms, seen.latency_high_ms))
    of = "" if seen.model is None else f" of {seen.model}"
    return f"{quantile_name(seen.quantile)}{of} {at} ms, between {low} and {high} ms"


def _price_words(plan: Plan) -> str:
    price = plan.found.cost.price
    as_of = f", as of {price.as_of}" if price.as_of else ""
    return f"{price.usd_per_hour:g} USD per hour: {price.describes} ({price.source}{as_of})"


def _memory_words(plan: Plan) -> str:
    resources = plan.resources
    shared = resources.shared_memory_bytes
    shm = f", and {memory_text(shared)} more for /dev/shm" if shared else ""
    if resources.memory_measured:
        return f"one and a half times the memory of the server and its models{shm}"
    return f"half of the machine's, because the server's was not measured{shm}"


def _machine_words(plan: Plan) -> str:
    machine = plan.found.machine
    gpus = f" and {', '.join(machine.gpus)}" if machine.gpus else ""
    return f"{machine.cpu}, {machine.cores} cores, {machine.memory_bytes / 2**30:.0f} GiB{gpus}"
