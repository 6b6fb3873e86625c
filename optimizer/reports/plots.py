"""What the page's plots draw, as plain values: the browser only places the marks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from optimizer.reports import words
from optimizer.time_words import STAGES, stage_means
from search.frontier import unbeaten

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optimizer.reports.evidence import Evidence
    from search.records import MeasurementRecord, TrialRecord

Data = dict[str, Any]

WINNER, BASELINE = "recommended", "Triton default"
LEAST_REPLICAS = 8
QUANTILES = ((0.5, "latency_p50_ms"), (0.9, "latency_p90_ms"), (0.95, "latency_p95_ms"), (0.99, "latency_p99_ms"),
             (0.999, "latency_p999_ms"))  # fmt: skip


def plots(evidence: Evidence) -> dict[str, Data]:
    """The data of every plot that has any, by the plot's name."""
    all_of_them = {
        "rates": rates(evidence),
        "quantiles": quantiles(evidence),
        "stages": stages(evidence),
        "search": search(evidence),
        "importance": importance(evidence),
        "replicas": replicas(evidence),
    }
    return {name: data for name, data in all_of_them.items() if data is not None}


def rates(evidence: Evidence) -> Data | None:
    """Rate against p99 of every trial's last good measurement, and of the certified runs, with the frontier."""
    points = [
        {
            **_named(evidence, trial),
            "rate": measured.rate_per_s,
            "p99": measured.latency_p99_ms,
            "state": trial.state,
        }
        for trial in evidence.trials
        if (measured := trial.measurement) is not None and measured.latency_p99_ms
    ]
    certified = [
        {
            **_named(evidence, trial),
            "role": role,
            "rate": certificate.rate_per_s,
            "p99": certificate.p99_ms,
            "low": certificate.p99_low_ms,
            "high": certificate.p99_high_ms,
        }
        for role, trial in _pair(evidence)
        if (certificate := trial.certificate) is not None
    ]
    if not points and not certified:
        return None
    runs = [
        {"trial": trial.number, "rate": run.rate_per_s, "p99": run.latency_ms}
        for trial in evidence.trials
        for run in sorted(trial.load_runs, key=lambda run: run.rate_per_s)
        if run.trusted and run.latency_ms
    ]
    return {
        "points": points,
        "runs": runs,
        "certified": certified,
        "frontier": unbeaten([(point["rate"], point["p99"]) for point in [*points, *runs, *certified]]),
        "limit": evidence.slo.limit_ms,
        "quantile": f"p{100 * evidence.slo.quantile:g}",
    }


def quantiles(evidence: Evidence) -> Data | None:
    """Latency at each quantile; x counts nines, so that every further one is as wide as the one before."""
    lines = []
    for role, trial in _pair(evidence):
        measured = trial.measurement
        if measured is not None and measured.requests > 1:
            points = list(_distribution(measured))
            lines += [{"role": role, "rate": measured.rate_per_s, **point} for point in points]
    if not lines:
        return None
    ticks = [(_nines(share), f"p{100 * share:g}") for share in (0.5, 0.9, 0.99, 0.999)]
    return {"points": lines, "ticks": ticks, "limit": evidence.slo.limit_ms}


def _distribution(measured: MeasurementRecord) -> Iterator[Data]:
    slowest = 1 - 1 / measured.requests
    for share, name in QUANTILES:
        latency = getattr(measured, name)
        if latency and share < slowest:
            yield {"nines": _nines(share), "name": f"p{100 * share:g}", "ms": latency}
    if measured.latency_max_ms:
        yield {"nines": _nines(slowest), "name": "slowest", "ms": measured.latency_max_ms}


def stages(evidence: Evidence) -> Data | None:
    """The mean ms of a request in each stage."""
    bars = [
        {"role": role, "stage": stage, "ms": value}
        for role, trial in _pair(evidence)
        if trial.measurement is not None
        for stage, value in stage_means(trial.measurement).items()
        if value is not None
    ]
    seen = {bar["stage"] for bar in bars}
    return {"bars": bars, "stages": [stage for stage in STAGES if stage in seen]} if bars else None


def search(evidence: Evidence) -> Data | None:
    """Each trial's rate over the seconds spent, and the best so far."""
    points, steps = [], []
    elapsed_s, best = 0.0, 0.0
    for trial in evidence.trials:
        elapsed_s += trial.loading_s + trial.load_s
        if trial.state == "complete" and (trial.rate_at_limit_per_s or 0.0) > best:
            best = trial.rate_at_limit_per_s or 0.0
        steps.append({"s": elapsed_s, "rate": best})
        if trial.rate_at_limit_per_s is not None:
            points.append(
                {
                    **_named(evidence, trial),
                    "s": elapsed_s,
                    "rate": trial.rate_at_limit_per_s,
                    "state": trial.state,
                    "reason": trial.reason,
                }
            )
    return {"points": points, "best": [step for step in steps if step["rate"]]} if points else None


def importance(evidence: Evidence) -> Data | None:
    """Each knob's share."""
    if not evidence.importances:
        return None
    return {
        "bars": [
            {"knob": words.KNOBS.get(name, name.replace("_", " ")), "share": share}
            for name, share in evidence.importances.items()
        ]
    }


def replicas(evidence: Evidence) -> Data | None:
    """USD an hour over the traffic, for as many replicas as it takes."""
    found = evidence.found
    if found is None:
        return None
    usd = found.cost.price.usd_per_hour
    needed = found.cost.replicas or 0
    certificates = [(role, trial.certificate) for role, trial in _pair(evidence)]
    assert certificates[0][1] is not None
    widest = max(LEAST_REPLICAS, needed + 2) * certificates[0][1].rate_per_s
    steps = [
        {
            "role": role,
            "from": (count - 1) * one,
            "to": min(count * one, widest),
            "usd": count * usd,
            "replicas": count,
        }
        for role, certificate in certificates
        if certificate is not None
        for one in [certificate.rate_per_s]
        for count in range(1, math.ceil(widest / one - 1e-9) + 1)
    ]
    return {"steps": steps, "wanted": found.cost.rate_to_serve_per_s, "widest": widest}


def _pair(evidence: Evidence) -> Iterator[tuple[str, TrialRecord]]:
    if evidence.found is not None:
        yield WINNER, evidence.found.winner
    if evidence.baseline is not None:
        yield BASELINE, evidence.baseline


def _named(evidence: Evidence, trial: TrialRecord) -> Data:
    return {"trial": trial.number, "knobs": words.knobs(evidence, trial)}


def _nines(share: float) -> float:
    return -math.log10(1 - share)
