"""The figures and sentences of a bundle, as people and machines read them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from deploy.scaling import HPA_SYNC_S, HPA_TOLERANCE, RATE_WINDOW_S, SCRAPE_INTERVAL_S
from search.words import quantile_name

if TYPE_CHECKING:
    from deploy.plan import Plan

DRIFT = 1.25
"""How much more than planned a million inferences may cost before somebody is told."""


def figures(plan: Plan) -> dict[str, str]:
    """Numbers as they are shown. `_exact` ones are for machines."""
    found, scaling, certificate = plan.found, plan.scaling, plan.certificate
    baseline = found.baseline.certificate if found.baseline is not None else None
    cost = found.cost
    return {
        "certified": f"{certificate.rate_per_s:,.5g}",
        "certified_exact": f"{certificate.rate_per_s:.9g}",
        "confidence_percent": f"{100 * certificate.confidence:.3g}",
        "p99": f"{certificate.p99_ms:.3g}",
        "p99_low": f"{certificate.p99_low_ms:.3g}",
        "p99_high": f"{certificate.p99_high_ms:.3g}",
        "limit_ms": f"{found.slo.limit_ms:.9g}",
        "promise": found.slo.text,
        "limit_options": " ".join(limit.option.replace("=", " ") for limit in found.slo.limits),
        "further_words": "".join(
            f"; {quantile_name(seen.quantile)} {seen.latency_ms:.3g} ms, between {seen.latency_low_ms:.3g} and "
            f"{seen.latency_high_ms:.3g} ms"
            for seen in certificate.also
        ),
        "usd_per_hour": f"{cost.price.usd_per_hour:.9g}",
        "price_words": _price_words(plan),
        "promised_usd": f"{cost.cost_per_million_inferences_usd:.4g}",
        "planned_usd": f"{plan.cost_per_million_at_least_load_usd:.4g}",
        "drift_usd": f"{DRIFT * plan.cost_per_million_at_least_load_usd:.9g}",
        "baseline_usd": ""
        if cost.baseline_cost_per_million_inferences_usd is None
        else f"{cost.baseline_cost_per_million_inferences_usd:.4g}",
        "baseline_rate": "" if baseline is None else f"{baseline.rate_per_s:,.5g}",
        "hourly_usd": f"{scaling.min_replicas * cost.price.usd_per_hour:.4g}",
        "rate": f"{scaling.traffic.rate_per_s:,.5g}",
        "target": f"{scaling.target_rate_per_s:,.5g}",
        "target_exact": f"{scaling.target_rate_per_s:.9g}",
        "target_milli": str(max(1, math.floor(1000 * scaling.target_rate_per_s))),
        "scaling_words": scaling_words(plan),
        "shm_mib": "1024",
        "memory_words": _memory_words(plan),
        "machine": _machine_words(plan),
    }


def scaling_words(plan: Plan) -> str:
    """How the autoscaler's target came about."""
    scaling, traffic = plan.scaling, plan.scaling.traffic
    start = {"measured": "measured, without pulling its image or adding a node"}.get(
        scaling.start_source, scaling.start_source
    )
    text = (
        f"One replica is certified for {scaling.certified_rate_per_s:,.5g} requests/s. Another one is started "
        f"above {scaling.target_rate_per_s:,.5g} each, which leaves {100 * scaling.headroom:.1f} % free, because "
        f"it comes {scaling.reaction_s:.3g} s late: {RATE_WINDOW_S / 2:g} s is half the window of the query, "
        f"{SCRAPE_INTERVAL_S:g} s the age of a sample, {HPA_SYNC_S:g} s the autoscaler's period, "
        f"{scaling.start_s:.3g} s the start of a replica ({start}). "
        f"Growing from {traffic.rate_per_s:,.5g} to {traffic.peak_rate_per_s:,.5g} requests/s within "
        f"{traffic.ramp_s:g} s, the traffic becomes {scaling.lead:.4g} times as high meanwhile, and the "
        f"autoscaler overlooks {100 * HPA_TOLERANCE:g} %: {scaling.certified_rate_per_s:,.5g} / "
        f"({1 + HPA_TOLERANCE:g} x {scaling.lead:.4g}). At least {scaling.min_replicas}: what "
        f"{traffic.rate_per_s:,.5g}/s needs, with one to spare. At most {scaling.max_replicas}: the same for "
        f"{traffic.peak_rate_per_s:,.5g}/s."
    )
    if traffic.assumed:
        text += f" Assumed, because nobody said it: {'; '.join(traffic.assumed)}."
    return text


def _price_words(plan: Plan) -> str:
    price = plan.found.cost.price
    as_of = f", as of {price.as_of}" if price.as_of else ""
    return f"{price.usd_per_hour:g} USD per hour: {price.describes} ({price.source}{as_of})"


def _memory_words(plan: Plan) -> str:
    shm = "1 GiB more for /dev/shm"
    if plan.resources.memory_measured:
        return f"one and a half times what the server and its models took, and {shm}"
    return f"half of the machine's, because the server's was not seen, and {shm}"


def _machine_words(plan: Plan) -> str:
    machine = plan.found.machine
    gpus = f" and {', '.join(machine.gpus)}" if machine.gpus else ""
    return f"{machine.cpu}, {machine.cores} cores, {machine.memory_bytes / 2**30:.0f} GiB{gpus}"
