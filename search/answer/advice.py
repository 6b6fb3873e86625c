"""Advice for a run that recommends nothing, or could not be measured well."""

from __future__ import annotations

import math
from dataclasses import replace

from loadgen.records.formats import format_ms, format_rate
from loadgen.spec.limits import LatencyLimit
from search.records.slo import ObjectiveRecord
from search.records.trial import TrialRecord

RUN_DIR = "RUN_DIR"
"""Stands for the run's directory in advice, until `find_best` puts the directory there."""

GO_ON = f"continue with optimize --resume {RUN_DIR}"
LONGER = f"Give a longer --time-budget, or {GO_ON}."
OTHERS_FIT = (
    "Let --tune name that model, too, give it a longer limit or a lower rate, or serve it by a server of its own."
)


def quieter(contention: str | None) -> str:
    """Return what helps against a disturbed measurement: against CPU contention, else against a late client."""
    if contention is None:
        return "Leave a processor to the client, or accept its lag with --max-send-lag."
    fix = "Stop the other processes" if "other processes" in contention else "Use a host without other guests"
    return f"{fix}, or measure at a quieter time; {GO_ON}."


def option(limit: LatencyLimit, seen_ms: float) -> str:
    """Return the option for a limit a tenth above a latency."""
    return replace(limit, limit_ms=rounded_up(1.1 * seen_ms)).option.replace("=", " ")


def rounded_up(value_ms: float) -> float:
    """Return a latency with three digits, not below it."""
    digits = 2 - math.floor(math.log10(value_ms))
    return math.ceil(round(value_ms * 10.0**digits, 6)) / 10.0**digits


def late_others(trial: TrialRecord, objective: ObjectiveRecord) -> str | None:
    """Say which colocated model was late at the lowest rate of a trial; None if there is none."""
    lone = min((one for one in trial.load_runs if one.trusted), key=lambda one: one.rate_per_s, default=None)
    if lone is None or lone.model is None or lone.met:
        return None
    late = f"{lone.violations or 0:,} of {lone.requests or 0:,} requests to {lone.model} were late"
    if lone.overloaded:
        late = f"requests to {lone.model} piled up"
    at = "Even with only" if objective.rate_per_s is None else "With"
    return f"{at} {format_rate(lone.rate_per_s)} requests/s to this one, {late}."


def what_binds(trial: TrialRecord) -> str:
    """Name the stage that takes most of the latency on an idle server; "" if the server gave no timings."""
    stages = {} if trial.measurement is None else trial.measurement.stages_ms
    known = {stage: ms for stage, ms in stages.items() if ms is not None}
    if not known:
        return ""
    largest = max(known, key=lambda stage: known[stage])
    return f" {largest.capitalize()} takes most of it, {format_ms(known[largest])} ms on average."
