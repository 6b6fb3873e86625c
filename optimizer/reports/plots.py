"""The data of the page's plots; each is the name of a function in `page.js` and plain values."""

from __future__ import annotations

import math
from collections.abc import Iterator

from loadgen.records.formats import format_rate, format_seconds
from loadgen.reports.kit import Data, Plot
from optimizer.reports.evidence import Evidence, compared_at_one_rate, default_of
from search.answer.explain import rate_steps
from search.labels import baseline_name
from search.records.recommendation import RecommendationRecord
from search.records.trial import STAGES, ConfigRecord, TrialRecord

WINNER = "recommended"
MAX_SILENCE_S = 60.0
"""A longer time without such a run, as before --resume, takes as much room as 60 s."""

MIN_REPLICAS = 8
MAX_STEPS = 1000
"""A staircase of more steps looks like the line beside it, and a file may ask for any number of them."""


def certainty(evidence: Evidence) -> Plot | None:
    """Every load run whose start is known, at its rate with what it decided; and the machine's speed meanwhile."""
    runs = [run for run in _load_runs(evidence) if run["s"] and run["began"] is not None]
    if not runs:
        return None
    speeds = [{"began": one.began_unix_s, "s": len(one.speeds), "speeds": one.speeds} for one in evidence.speeds]
    certificate = None if evidence.found is None else evidence.found.winner.certificate
    certified = []
    if certificate is not None:
        rate_per_s = certificate.rate_per_s
        certified.append({"rate": rate_per_s, "name": f"certified: {format_rate(rate_per_s)}/s"})
    return "certainty", {
        "silences": _placed([*runs, *speeds]),
        "runs": runs,
        "speeds": speeds,
        "certified": certified,
    }


def _load_runs(evidence: Evidence) -> Iterator[Data]:
    """Yield the load runs and confirmations; `began`, `s` and `ms` may be None."""
    winners = [] if evidence.found is None else [evidence.found.winner]  # one may have a run more than its trial
    trials = {trial.number: trial for trial in (*evidence.trials, *winners)}
    roles = {trial.number: role for role, trial in _pair(evidence)}
    for step in rate_steps(trials.values(), (one for one in evidence.confirmations if one.trial in trials)):
        trial = trials[step.trial]
        yield {
            **_named(evidence, trial),
            "role": roles.get(trial.number),
            "state": trial.state,
            "began": step.began_unix_s,
            "s": step.seconds,
            "rate": step.rate_per_s,
            "ms": step.latency_ms,
            "decided": step.decided,
            "words": step.answer,
            "confirms": step.step != "trial",
            "low": None if step.believed is None else step.believed.low_per_s,
            "high": None if step.believed is None else step.believed.high_per_s,
        }


def _placed(items: list[Data]) -> list[Data]:
    """Set `from`, the seconds from the first item on, and return the silences that are not drawn to their end."""
    items = sorted(items, key=lambda item: item["began"])
    begin = end = items[0]["began"]
    silences = []
    for item in items:
        silence_s = item["began"] - end
        if silence_s > MAX_SILENCE_S:
            begin += silence_s - MAX_SILENCE_S
            middle = item["began"] - begin - MAX_SILENCE_S / 2
            silences.append({"at": middle, "name": f"{format_seconds(round(silence_s))} not drawn"})
        item["from"] = item["began"] - begin
        end = max(end, item["began"] + item["s"])
    return silences


def rates(evidence: Evidence) -> Plot | None:
    """Latency at the first limit's quantile over the rate: predicted curves, load runs and certificates."""
    curves = [
        {"role": role, "rate": rate, "ms": latency_ms}
        for role, trial in _pair(evidence)
        for predicted in evidence.predictions
        if predicted.config == trial.config
        for rate, latency_ms in predicted.curve
    ]
    certified = [
        {
            **_named(evidence, trial),
            "role": role,
            "rate": certificate.rate_per_s,
            "ms": certificate.first.latency_ms,
            "low": certificate.first.latency_low_ms,
            "high": certificate.first.latency_high_ms,
        }
        for role, trial in _pair(evidence)
        if (certificate := trial.certificate) is not None
    ]
    runs = [run for run in _load_runs(evidence) if run["ms"] and run["decided"] != "not trusted"]
    if not runs and not certified:
        return None
    first = evidence.slo.first
    return "rates", {
        "curves": curves,
        "runs": runs,
        "certified": certified,
        "limits": [{"ms": first.limit_ms, "name": f"limit {first.limit_ms:g} ms"}],
        "quantile": first.name,
    }


TOLD_APART = 1.1
"""A measured configuration stands for its batch size and instance count unless another one of them is predicted
10 % faster: a prediction that was never tried is not more precise."""


def cells(evidence: Evidence) -> list[Data]:
    """Return the best configuration of each batch size and instance count, measured or only predicted.

    `how` is measured, predicted, or at most: the trial ended early. That of the recommendation stands for it.
    """
    winner = None if evidence.found is None else evidence.found.winner
    trials = {trial.number: trial for trial in (*evidence.trials, *([] if winner is None else [winner]))}
    best: dict[tuple[int, int], tuple[float, Data]] = {}

    def offer(config: ConfigRecord, rate_per_s: float, how: str, *, is_best: bool = False) -> None:
        cell = max(config.max_batch_size, 1), config.instance_count
        worth = math.inf if is_best else rate_per_s if how == "predicted" else TOLD_APART * rate_per_s
        data = {"batch": cell[0], "instances": cell[1], "rate": rate_per_s, "how": how, "best": is_best}
        if cell not in best or worth > best[cell][0]:
            best[cell] = worth, {**data, "knobs": evidence.words(config)}

    for trial in trials.values():
        rate_per_s, is_winner = trial.rate_at_limit_per_s, winner is not None and trial.number == winner.number
        if rate_per_s is not None:
            met = [run.rate_per_s for run in trial.load_runs if run.met and run.trusted]
            met += [] if trial.certificate is None else [trial.certificate.rate_per_s]
            how = "at most" if trial.state == "pruned" else "measured"
            offer(trial.config, max([rate_per_s, *met]), how, is_best=is_winner)
    tried = [trial.config for trial in trials.values() if trial.rate_at_limit_per_s is not None]
    for predicted in evidence.predictions:
        if predicted.config not in tried:
            offer(predicted.config, predicted.rate_per_s, "predicted")
    return [data for _, (_, data) in sorted(best.items(), key=lambda pair: pair[0])]


def configurations(evidence: Evidence) -> Plot | None:
    """The capacity of each batch size and instance count; None if all have the same."""
    shown = cells(evidence)
    return ("configurations", {"cells": shown}) if len(shown) > 1 else None


def stages(found: RecommendationRecord) -> Plot | None:
    """The mean ms of a request in each stage, of the recommendation and of the default if both can be compared."""
    roles = (WINNER, baseline_name(found.winner.config))
    bars = [
        {"role": role, "stage": stage, "ms": value}
        for role, (_, measured) in zip(roles, compared_at_one_rate(found), strict=False)
        for stage, value in measured.stages_ms.items()
        if value is not None
    ]
    seen = {bar["stage"] for bar in bars}
    return ("stages", {"bars": bars, "stages": [stage for stage in STAGES if stage in seen]}) if bars else None


def replicas(evidence: Evidence) -> Plot | None:
    """USD an hour over the traffic: for as many replicas as it takes, and pro rata."""
    found = evidence.found
    if found is None:
        return None
    usd = found.cost.price.usd_per_hour
    needed = found.cost.replicas or 0
    certificates = [(role, trial.certificate) for role, trial in _pair(evidence)]
    rates = [(role, certificate.rate_per_s) for role, certificate in certificates if certificate is not None]
    widest = max(MIN_REPLICAS, needed + 2) * rates[0][1]
    steps = [
        {
            "role": role,
            "from": (count - 1) * one,
            "to": min(count * one, widest),
            "usd": count * usd,
            "replicas": count,
        }
        for role, one in rates
        if widest / one <= MAX_STEPS
        for count in range(1, math.ceil(widest / one - 1e-9) + 1)
    ]
    lines = [{"role": role, "usd": widest / one * usd} for role, one in rates]
    return "replicas", {"steps": steps, "lines": lines, "wanted": found.cost.rate_to_serve_per_s, "widest": widest}


def _pair(evidence: Evidence) -> Iterator[tuple[str, TrialRecord]]:
    if evidence.found is not None:
        yield WINNER, evidence.found.winner
        if (default := default_of(evidence.found)) is not None:
            yield baseline_name(default.config), default


def _named(evidence: Evidence, trial: TrialRecord) -> Data:
    return {"trial": trial.number, "knobs": evidence.words(trial.config)}
