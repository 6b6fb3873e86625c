"""When no configuration keeps the limit: which limit is within reach, with which one, and what binds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optimizer.errors import UserError
from search.words import knobs_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from search.records import Slo
    from search.trial import Trial


class NothingFound(UserError):
    """No configuration was found that keeps the limit."""

    exit_code = 99


def explain_infeasible(trials: Sequence[Trial], slo: Slo) -> NothingFound:
    """The error that says what is reachable. `trials` may be any that were finished."""
    promise = f"p{100 * slo.quantile:g} within {slo.limit_ms:g} ms"
    within_reach = [trial for trial in trials if trial.lone_latency_ms is not None and trial.state == "infeasible"]
    if any(trial.state == "complete" for trial in trials):
        return NothingFound(
            f"No rate could be certified to keep {promise}: the time budget was too short for that many requests.",
            "Give a longer --time-budget, or go on with --resume.",
        )
    if not within_reach:
        return NothingFound(
            f"No configuration was found that keeps {promise}: none could be measured.",
            "See trials.jsonl in the run's directory for the reason of each trial.",
        )
    best = min(within_reach, key=lambda trial: trial.lone_latency_ms or 0.0)
    assert best.lone_latency_ms is not None
    seen_p99_ms = best.measurement.latency_p99_ms if best.measurement is not None else None
    reachable_ms = 1.1 * max(best.lone_latency_ms, seen_p99_ms or 0.0)
    return NothingFound(
        f"No configuration keeps {promise}. The best, {knobs_text(best.config)}, answers single requests on an "
        f"idle server in {best.lone_latency_ms:.3g} ms. {what_binds(best, slo)}",
        f"Give a limit from about --p99 {reachable_ms:.3g}ms, a faster machine, or a smaller model.",
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
