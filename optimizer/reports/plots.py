"""The data of the page's plots; each is the name of a function in `page.js` and plain values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import accumulate

from loadgen.records.formats import format_rate, format_seconds
from loadgen.reports.kit import Data, Plot, nines
from loadgen.spec.limits import quantile_name
from optimizer.reports.evidence import Evidence, compared_at_one_rate
from optimizer.reports.text import KNOBS
from optimizer.reports.trial_tables import confirmation_answer, load_run_answer
from search.answer.analysis import unbeaten
from search.labels import baseline_name
from search.records.confirmations import ConfirmationRecord
from search.records.trial import STAGES, LoadRunRecord, MeasurementRecord, TrialRecord

WINNER = "recommended"
MAX_SILENCE_S = 60.0
"""A longer time without such a run, as before --resume, takes as much room as 60 s."""

MIN_REPLICAS = 8
MAX_STEPS = 1000
"""A staircase of more steps looks like the line beside it, and a file may ask for any number of them."""


def certainty(evidence: Evidence) -> Plot | None:
    """Every load run at its rate, over time, with what it decided; and the machine's speed meanwhile.

    If it is not known when they began, all runs follow each other without a pause, and `timed` is False.
    """
    runs = list(_load_runs(evidence))
    if not runs:
        return None
    timed = all(run["began"] is not None for run in runs)
    speeds = [{"began": one.began_unix_s, "s": len(one.speeds), "speeds": one.speeds} for one in evidence.speeds]
    if not timed:
        speeds, ends = [], accumulate(run["s"] for run in runs)
        for run, end_s in zip(runs, ends, strict=True):
            run["began"] = end_s - run["s"]
    certificate = None if evidence.found is None else evidence.found.winner.certificate
    certified = []
    if certificate is not None:
        rate_per_s = certificate.rate_per_s
        certified.append({"rate": rate_per_s, "name": f"certified: {format_rate(rate_per_s)}/s"})
    return "certainty", {
        "silences": _placed([*runs, *speeds]),
        "runs": runs,
        "speeds": speeds,
        "timed": timed,
        "certified": certified,
    }


def _load_runs(evidence: Evidence) -> Iterator[Data]:
    """Yield the load runs and confirmations whose duration is known; a field `began` may be None."""
    winners = [] if evidence.found is None else [evidence.found.winner]  # one may have a run more than its trial
    trials = {trial.number: trial for trial in (*evidence.trials, *winners)}
    tried: list[tuple[TrialRecord, LoadRunRecord | ConfirmationRecord, str, str]] = [
        (trial, run, _decided(run.answer, run.overloaded, run.trusted), load_run_answer(run))
        for trial in trials.values()
        for run in trial.load_runs
    ]
    tried += [
        (trials[one.trial], one, _decided(one.answer, one.overloaded, not one.problems), confirmation_answer(one))
        for one in evidence.confirmations
        if one.trial in trials
    ]
    for trial, run, decided, words in tried:
        if run.seconds:
            yield {
                **_named(evidence, trial),
                "state": trial.state,
                "began": run.began_unix_s,
                "s": run.seconds,
                "rate": run.rate_per_s,
                "decided": decided,
                "words": words,
                "confirms": isinstance(run, ConfirmationRecord),
            }


def _decided(answer: str | None, overloaded: bool | None, trusted: bool) -> str:
    if not trusted:
        return "not trusted"
    return "violated" if overloaded else answer or "inconclusive"


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
    """Rate and latency of every trial's last good measurement, and of the confirmations, with the frontier.

    The latency is at the first limit's quantile. `over` is True if that measurement was over any limit.
    """
    first = evidence.slo.first
    points = [
        {
            **_named(evidence, trial),
            "rate": measured.rate_per_s,
            "ms": latency_ms,
            "over": any(
                (measured.latency_at_ms(one.quantile) or 0.0) > one.limit_ms for one in evidence.slo.limits
            ),
            "state": trial.state,
        }
        for trial in evidence.trials
        if (measured := trial.measurement) is not None and (latency_ms := measured.latency_at_ms(first.quantile))
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
    confirmations = _confirmations(evidence)
    if not points and not certified and not confirmations:
        return None
    roles = {trial.number: role for role, trial in _pair(evidence)}
    runs = [
        {
            "trial": trial.number,
            "rate": run.rate_per_s,
            "ms": run.latency_ms,
            "met": run.met,
            "role": roles.get(trial.number),
        }
        for trial in evidence.trials
        for run in sorted(trial.load_runs, key=lambda run: run.rate_per_s)
        if run.trusted and run.latency_ms
    ]
    met = [*(one for one in points if not one["over"]), *(run for run in runs if run["met"]), *certified]
    return "rates", {
        "points": points,
        "runs": runs,
        "certified": certified,
        "confirmations": confirmations,
        "frontier": unbeaten([(one["rate"], one["ms"]) for one in met]),
        "limits": _limits(evidence),
        "quantile": evidence.slo.first.name,
    }


def _confirmations(evidence: Evidence) -> list[Data]:
    """Confirmations that were trusted; those that were met only if no certificate shows them."""
    trials = {trial.number: trial for trial in evidence.trials}
    return [
        {
            **_named(evidence, trials[one.trial]),
            "rate": one.rate_per_s,
            "ms": one.latency_ms,
            "answer": one.answer,
        }
        for one in evidence.confirmations
        if one.latency_ms and not one.problems and one.trial in trials
        if one.answer != "met" or evidence.found is None
    ]


def quantiles(evidence: Evidence) -> Plot | None:
    """Latency at each quantile; x counts nines, so that every further one is as wide as the one before."""
    points, roles = [], []
    for role, measured in _measured(evidence):
        if measured.requests > 1:
            label = f"{role} at {format_rate(measured.rate_per_s)}/s"
            roles.append((role, label))
            points += [{"role": role, "label": label, **point} for point in _distribution(measured)]
    if not points:
        return None
    ticks = [(nines(share), quantile_name(share)) for share in (0.5, 0.9, 0.99, 0.999)]
    return "quantiles", {"points": points, "roles": roles, "ticks": ticks, "limits": _limits(evidence)}


def _limits(evidence: Evidence) -> list[Data]:
    first = evidence.slo.first
    return [{"ms": first.limit_ms, "name": f"limit {first.limit_ms:g} ms"}]


def _distribution(measured: MeasurementRecord) -> Iterator[Data]:
    slowest = 1 - 1 / measured.requests
    for share, latency in measured.latencies_ms.items():
        if latency and share < slowest:
            yield {"nines": nines(share), "name": quantile_name(share), "ms": latency}
    if measured.latency_max_ms:
        yield {"nines": nines(slowest), "name": "slowest", "ms": measured.latency_max_ms}


def stages(evidence: Evidence) -> Plot | None:
    """The mean ms of a request in each stage."""
    bars = [
        {"role": role, "stage": stage, "ms": value}
        for role, measured in _measured(evidence)
        for stage, value in measured.stages_ms.items()
        if value is not None
    ]
    seen = {bar["stage"] for bar in bars}
    return ("stages", {"bars": bars, "stages": [stage for stage in STAGES if stage in seen]}) if bars else None


def importance(evidence: Evidence) -> Plot | None:
    """Each knob's share."""
    if not evidence.importances:
        return None
    bars = [
        {"knob": KNOBS.get(name, name.replace("_", " ")), "share": share}
        for name, share in evidence.importances.items()
    ]
    return "importance", {"bars": bars}


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


def _measured(evidence: Evidence) -> Iterator[tuple[str, MeasurementRecord]]:
    """Yield the measurements of recommendation and default whose latencies can be compared."""
    if evidence.found is not None:
        roles = (WINNER, baseline_name(evidence.found.winner.config))
        for role, (_, measured) in zip(roles, compared_at_one_rate(evidence.found), strict=False):
            yield role, measured


def _pair(evidence: Evidence) -> Iterator[tuple[str, TrialRecord]]:
    if evidence.found is not None:
        yield WINNER, evidence.found.winner
    if evidence.baseline is not None:
        yield baseline_name(evidence.baseline.config), evidence.baseline


def _named(evidence: Evidence, trial: TrialRecord) -> Data:
    return {"trial": trial.number, "knobs": evidence.knobs(trial)}
