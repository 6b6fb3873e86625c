"""When no configuration keeps the limit: which limit is within reach, with which one, and what binds."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from optimizer.errors import UserError
from search.objective import COST
from search.words import knobs_text, memory_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from search.confirmations import ConfirmationRecord
    from search.objective import Objective
    from search.records import Slo
    from search.trial import Trial


WELL_OVER = 2.0
"""Times as many requests over the limit as it allows: fewer may have been the bad luck of a short run."""


class NothingFound(UserError):
    """No configuration was found that keeps the limit."""

    exit_code = 99


def explain_infeasible(
    trials: Sequence[Trial],
    slo: Slo,
    objective: Objective = COST,
    confirmations: Sequence[ConfirmationRecord] = (),
) -> NothingFound:
    """The error that says what is reachable. `trials` may be any that were finished, and `confirmations` tried."""
    promise = slo.text
    within_reach = [trial for trial in trials if trial.lone_latency_ms is not None and trial.state == "infeasible"]
    if any(trial.state == "complete" for trial in trials):
        trusted = [one for one in confirmations if not one.problems and one.latency_ms is not None]
        gentlest = min((one for one in trusted if _is_well_over(one, slo)), key=_rate, default=None)
        if gentlest is not None and not any(_seems_kept(one, slo) for one in trusted):
            return _never_kept(gentlest, slo)
        seen = f"{gentlest.rate_per_s:,.3g} requests/s broke it, and " if gentlest is not None else ""
        return NothingFound(
            f"No rate could be certified to keep {promise}: {seen}the time budget was too short for as many "
            "requests as it takes.",
            "Give a longer --time-budget, or go on with --resume.",
        )
    if slo.max_memory_bytes is not None and any(trial.over_memory(slo.max_memory_bytes) for trial in trials):
        return _memory_binds(trials, slo, slo.max_memory_bytes)
    if objective.rate_per_s is not None and any(trial.rate_at_limit_per_s for trial in trials):
        return _rate_is_too_high(trials, slo, objective.rate_per_s)
    if not within_reach:
        return NothingFound(
            f"No configuration was found that keeps {promise}: none could be measured.",
            "See trials.jsonl in the run's directory for the reason of each trial.",
        )
    best = min(within_reach, key=lambda trial: trial.lone_latency_ms or 0.0)
    assert best.lone_latency_ms is not None
    options = " ".join(option.replace("=", " ") for option in _within_reach(best, slo))
    return NothingFound(
        f"No configuration keeps {promise}. The best, {knobs_text(best.config)}, answers single requests on an "
        f"idle server in {best.lone_latency_ms:.3g} ms. {what_binds(best, slo)}",
        f"Give a limit from about {options}, a faster machine, or a smaller model.",
    )


def _rate(one: ConfirmationRecord) -> float:
    return one.rate_per_s


def _is_well_over(one: ConfirmationRecord, slo: Slo) -> bool:
    return one.violations > max(WELL_OVER * (1 - slo.quantile) * one.requests, 3)


def _seems_kept(one: ConfirmationRecord, slo: Slo) -> bool:
    """Though it may have been too short for a certificate."""
    allowed = (1 - slo.quantile) * one.requests
    return one.kept or (allowed >= 1 and one.violations <= allowed)


def _never_kept(seen: ConfirmationRecord, slo: Slo) -> NothingFound:
    """Inputs differ, and those of one size are over the limit by themselves; or the server stalls now and then."""
    assert seen.latency_ms is not None
    first = slo.limits[0]
    reachable = replace(first, limit_ms=float(f"{1.1 * seen.latency_ms:.3g}")).option.replace("=", " ")
    return NothingFound(
        f"No rate could be certified to keep {slo.text}: even at {seen.rate_per_s:,.3g}/s, {seen.violations} of "
        f"{seen.requests} requests were over it ({first.name} {seen.latency_ms:.3g} ms).",
        f"Inputs of one size may be slower than the limit by themselves: give a limit from about {reachable}.",
    )


def _within_reach(best: Trial, slo: Slo) -> list[str]:
    """The limits that are missed, each as it could be asked for: what was seen, and a tenth more."""
    missed = []
    for limit in slo.limits:
        seen_ms = None if best.measurement is None else best.measurement.latency_at_ms(limit.quantile)
        reachable_ms = 1.1 * max(best.lone_latency_ms or 0.0, seen_ms or 0.0)
        if len(slo.limits) == 1 or reachable_ms > limit.limit_ms:
            missed.append(replace(limit, limit_ms=float(f"{reachable_ms:.3g}")).option)
    return missed or [limit.option for limit in slo.limits]


def _rate_is_too_high(trials: Sequence[Trial], slo: Slo, rate_per_s: float) -> NothingFound:
    best = max(trials, key=lambda trial: trial.rate_at_limit_per_s or 0.0)
    most = best.rate_at_limit_per_s or 0.0
    return NothingFound(
        f"No configuration keeps {slo.text} at {rate_per_s:,.4g} requests/s on one replica: the best, "
        f"{knobs_text(best.config)}, keeps it up to about {most:,.3g}.",
        f"Give a lower --rate, such as {0.9 * most:.3g}, or leave --objective out to have replicas counted.",
    )


def _memory_binds(trials: Sequence[Trial], slo: Slo, most_bytes: int) -> NothingFound:
    seen = [(trial.memory_bytes, trial) for trial in trials if trial.over_memory(most_bytes)]
    least_bytes, least = min(seen, key=lambda pair: pair[0] or 0)
    assert least_bytes is not None
    return NothingFound(
        f"No configuration was found that keeps {slo.text} in {memory_text(most_bytes)}: the smallest over it, "
        f"{knobs_text(least.config)}, took {memory_text(least_bytes)}.",
        f"Give --max-memory {memory_text(1.1 * least_bytes).replace(' ', '')}, or a smaller model.",
    )


def what_binds(trial: Trial, slo: Slo) -> str:
    """The stage that alone, or first of all, takes the limit of a request that met an idle server."""
    measured = trial.measurement
    server = None if measured is None else measured.server
    if measured is None or server is None:
        return "What binds is not known: the server gave no timings."
    model_ms = server.compute_input_ms + server.compute_infer_ms + server.compute_output_ms
    if model_ms > slo.limit_ms:
        return f"The engine alone takes {model_ms:.3g} ms, which no configuration of the server can shorten."
    if server.queue_ms > max(model_ms, measured.network_and_client_ms or 0.0):
        return f"Queueing binds: {server.queue_ms:.3g} ms of waiting before {model_ms:.3g} ms of execution."
    if (measured.network_and_client_ms or 0.0) > model_ms:
        return (
            f"The client and the way to the server bind: {measured.network_and_client_ms:.3g} ms, against "
            f"{model_ms:.3g} ms of execution."
        )
    return f"The engine takes {model_ms:.3g} ms in the mean, and its slowest runs are over the limit."
