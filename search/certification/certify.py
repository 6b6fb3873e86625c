"""From estimates to a certified rate: the best configuration must meet the SLO under fresh arrivals, twice."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from loadgen.statistics.confirm import OF_WHAT_IT_SERVED
from search.certification.certifier import LEAST_CERTIFY_S, Certifier, Replays, join_caveats
from search.certification.first_rate import LAST_RESORT_SHARE, first_share
from search.records.slo import Slo
from search.study.drift import speed_variation_of
from search.study.store import TrialStore
from search.trials import events
from search.trials.bench import Bench, BenchFailed
from search.trials.budget import Budget
from search.trials.certificate_time import USUAL, affordable_confidence, confidence_of_a_run
from search.trials.trial import Trial
from search.workload import Workload

WHEN_STOPPED_S = 30.0
SHARE_WHEN_STOPPED = 0.8
"""After the user has asked to finish, certification takes at most 30 s and tries 80 % of the estimate: further
from the limit, fewer requests decide."""

BASELINE_AT_LEAST_S, BASELINE_OF_WINNER = 15.0, 0.5
"""Certifying the baseline may take 15 s, or half of the time for the winner if that is more: the baseline is only
compared with."""

SHARE_FOR_FIRST_RUN = 0.5
SHARE_FOR_SECOND_RUN = 0.6
"""The first and the second confirmation may take these shares of the time left. The rest is for the next candidate
or a last resort, as a low certified rate beats none; after the second confirmation it is for the baseline."""

LAST_RESORTS, LOWER_EACH_TIME, LAST_RESORT_S = 3, 0.7, 15.0
"""The number of last-resort confirmations, the factor by which each lowers the rate, and the least seconds that
have to be left for another one."""

TIGHT_SHARE = 0.68
"""A first confirmation tries at most 68 % of the estimate if its time is too short for a usual one. There is no
time for a second try, and farther from the capacity bursts are shorter: in 100 s at 70/s, ten of ten simulated
servers were certified twice, compared with five of ten."""

NEARLY = 0.97
"""A candidate gives way once its rate has fallen to 97 % of the rate that is expected of the next one."""


class Caveat(StrEnum):
    """Why a rate is confirmed only once. NOT_AGAIN is followed by the reason."""

    STOPPED = "the run was stopped before it could be confirmed again"
    NO_TIME = "there was no time to confirm it again on a restarted server"
    SERVER_FAILED = "the server failed while it was confirmed again"
    NOT_AGAIN = "it met the SLO once, but not again on a restarted server"


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifiedResult:
    """The winner with its certificate; the baseline, with a certificate if there was time for it."""

    winner: Trial
    baseline: Trial | None


def certify_best(
    store: TrialStore,
    bench: Bench,
    *,
    slo: Slo,
    budget: Budget,
    seed: int,
    workload: Workload | None = None,
    on_event: events.OnEvent = events.ignore,
    stop: Callable[[], bool] = lambda: False,
) -> CertifiedResult | None:
    """Return the best trial whose rate is confirmed twice, the second time on a fresh server; None if none is.

    A failed confirmation is repeated at a lower rate, until the runner-up promises more. If `stop` is true, only
    one confirmation is made; in 30 s at most, if it was true at the start.
    """
    hurried = stop()
    deadline_s = budget.elapsed_s() + WHEN_STOPPED_S if hurried else None
    certifier = Certifier(
        bench=bench,
        slo=slo,
        objective=store.objective,
        budget=budget,
        seed=seed,
        directory=store.path.parent,
        workload=workload or Workload(),
        deadline_s=deadline_s,
        confidence=slo.confidence if hurried else confidence_of_a_run(slo.confidence),
        on_event=on_event,
        variation=speed_variation_of(store.current),
        replays=Replays.of_run(store, slo=slo, seed=seed, workload=workload or Workload()),
    )
    if certifier.variation.text is not None and not hurried:
        text = f"While the search measured, {certifier.variation.text}: lower rates are confirmed, for longer."
        on_event(events.Note(text=text, warning=True, code="unstable_speed"))
    objective = store.objective
    ranked = objective.best_first(store.current) or objective.best_first(store.trials)
    candidates = [trial for trial in ranked if trial.rate_at_limit_per_s]
    if objective.name == "cost":
        candidates.sort(key=certifier.estimate_of, reverse=True)
    if candidates and not hurried:
        _lower_confidence(certifier, candidates[0])
    load_before_s = bench.spent.load_s
    winner = _winner(certifier, candidates, hurried=hurried, stop=stop)
    if winner is None:
        return None
    # The last of them: if the machine has changed its speed, the baseline was tried again.
    defaults = [trial for trial in store.trials if trial.served == store.space.baseline(trial.served.engine)]
    baseline = defaults[-1] if defaults else None
    if baseline is not None and baseline.number == winner.number:
        return CertifiedResult(winner=winner, baseline=winner)
    if baseline is not None and baseline.state == "complete" and not stop():
        most_s = max(BASELINE_AT_LEAST_S, BASELINE_OF_WINNER * (bench.spent.load_s - load_before_s))
        baseline = _confirmed_baseline(certifier, baseline, most_s)
        mine, other = objective.certified_worth(winner), objective.certified_worth(baseline)
        if mine is not None and other is not None and other > mine:
            # On a machine with unstable speed the estimates may have been luck: the certified rates decide.
            does = "is certified for more than" if objective.name == "cost" else "does better than"
            text = f"The default configuration {does} trial {winner.number}, so it is the answer."
            on_event(events.Note(text=text, code="default_is_better", trial=winner.number))
            winner = baseline = _confirmed_again(certifier, baseline)
    return CertifiedResult(winner=winner, baseline=baseline)


def _lower_confidence(certifier: Certifier, best: Trial) -> None:
    """Certify with a lower confidence if the time left is too short for that of the SLO."""
    slo, left_s = certifier.slo, certifier.left_s()
    rate_per_s = certifier.rate_to_try(best, LAST_RESORT_SHARE)
    affordable = affordable_confidence(rate_per_s, slo, left_s)
    if affordable < slo.confidence:
        certifier.lower_confidence(affordable)


def _winner(
    certifier: Certifier, candidates: list[Trial], *, hurried: bool, stop: Callable[[], bool]
) -> Trial | None:
    """Return the first candidate that is confirmed and stays within the memory limit, also on a new server."""
    if not candidates:
        return None
    if hurried:
        winner = _loaded_and_confirmed(
            certifier, candidates[0], from_share=SHARE_WHEN_STOPPED, budget_s=certifier.left_s()
        )
    else:
        winner = _first_confirmed(certifier, candidates)
        if winner is None:
            certifier.extend()
            winner = _last_resorts(certifier, candidates, stop)
    if winner is None:
        return None
    if stop():
        return _with_caveat(winner, Caveat.STOPPED)
    winner = _confirmed_again(certifier, winner)
    if certifier.fits(winner):
        return winner
    others = [trial for trial in candidates if trial.number != winner.number]
    return _winner(certifier, others, hurried=hurried, stop=stop)


def _confirmed_baseline(certifier: Certifier, baseline: Trial, most_s: float) -> Trial:
    budget_s = min(most_s, certifier.share_of_time(1.0))
    share = first_share(baseline, certifier.slo, budget_s)
    if budget_s < certifier.least_s(certifier.rate_to_try(baseline, share)):
        return baseline  # so few requests decide nothing, and the estimate is enough for the comparison
    return _loaded_and_confirmed(certifier, baseline, from_share=share, budget_s=budget_s) or baseline


def _first_confirmed(certifier: Certifier, candidates: list[Trial]) -> Trial | None:
    """Return the first candidate that is confirmed at a rate worth having.

    Such a rate is not below the rate expected of the next candidate (if rates are compared), nor below the rate of
    a last resort.
    """
    for index, trial in enumerate(candidates):
        budget_s = SHARE_FOR_FIRST_RUN * certifier.left_s()
        share = first_share(trial, certifier.slo, budget_s)
        if budget_s < USUAL * certifier.least_s(certifier.rate_to_try(trial, share)):
            share = min(share, TIGHT_SHARE)
        if budget_s < certifier.least_s(certifier.rate_to_try(trial, share)):
            return None  # and those that follow need even longer
        by_rate = certifier.objective.name == "cost" and index + 1 < len(candidates)
        following_per_s = certifier.rate_to_try(candidates[index + 1], share) if by_rate else 0.0
        floor_per_s = max(NEARLY * following_per_s, certifier.rate_to_try(trial, LAST_RESORT_SHARE))
        confirmed = _loaded_and_confirmed(
            certifier, trial, from_share=share, budget_s=budget_s, floor_per_s=floor_per_s
        )
        if confirmed is not None:
            return confirmed
    return None


def _last_resorts(certifier: Certifier, candidates: list[Trial], stop: Callable[[], bool]) -> Trial | None:
    """Try last resorts, each at a lower rate, while there is time: a single one may meet a stalled machine."""
    for times in range(LAST_RESORTS):
        if times and (stop() or certifier.left_s() < LAST_RESORT_S):
            return None
        winner = _last_resort(certifier, candidates, lower=LOWER_EACH_TIME**times)
        if winner is not None:
            return winner
    return None


def _last_resort(certifier: Certifier, candidates: list[Trial], *, lower: float) -> Trial | None:
    """Confirm the best candidate far below its estimate; if all failed, the best by the rates they reached last.

    A machine that has become slower since the estimates is slower for every candidate: the rates that they reached
    meanwhile are better estimates.
    """

    def seen_per_s(trial: Trial) -> float:
        return min(certifier.estimate_of(trial), certifier.served_per_s.get(trial.number, math.inf))

    best = max(candidates, key=seen_per_s)
    from_share = min(LAST_RESORT_SHARE, OF_WHAT_IT_SERVED * seen_per_s(best) / certifier.estimate_of(best))
    return _loaded_and_confirmed(certifier, best, from_share=lower * from_share, budget_s=certifier.left_s())


def _loaded_and_confirmed(
    certifier: Certifier,
    trial: Trial,
    *,
    budget_s: float,
    from_share: float,
    floor_per_s: float = 0.0,
) -> Trial | None:
    if budget_s < LEAST_CERTIFY_S:
        return None
    try:
        certifier.bench.load(trial.served)
        rate_per_s = certifier.rate_to_try(trial, from_share)
        confirmed = certifier.confirm_rate(trial, rate_per_s, budget_s=budget_s, floor_per_s=floor_per_s)
        return confirmed if confirmed is not None and certifier.fits(confirmed) else None
    except BenchFailed as failure:
        certifier.lost(trial, failure)
        return None


def _confirmed_again(certifier: Certifier, winner: Trial) -> Trial:
    """Confirm the winner a second time on a restarted server; add a caveat if that fails.

    If the usual share of the time left is too short for that, it gets all of it, and the baseline nothing.
    If no rate meets the SLO again, the time for the baseline goes into a far lower rate: a low certified rate
    beats one that is known not to hold.
    """
    assert winner.certificate is not None
    budget_s = certifier.share_of_time(SHARE_FOR_SECOND_RUN)
    if budget_s < USUAL * certifier.least_s(winner.certificate.rate_per_s):
        budget_s = certifier.left_s()
    if budget_s < LEAST_CERTIFY_S:
        return _with_caveat(winner, Caveat.NO_TIME)
    try:
        certifier.bench.restart()
        again = certifier.confirm_rate(winner, winner.certificate.rate_per_s, budget_s=budget_s)
        if again is None and certifier.objective.rate_per_s is None and certifier.left_s() >= LEAST_CERTIFY_S:
            lower_per_s = LAST_RESORT_SHARE * winner.certificate.rate_per_s
            again = certifier.confirm_rate(winner, lower_per_s, budget_s=certifier.left_s())
    except BenchFailed as failure:
        certifier.lost(winner, failure)
        return _with_caveat(winner, Caveat.SERVER_FAILED)
    return again or _with_caveat(winner, f"{Caveat.NOT_AGAIN}: {certifier.last_reason}")


def _with_caveat(trial: Trial, caveat: str) -> Trial:
    assert trial.certificate is not None
    both = join_caveats(trial.certificate.caveat, caveat)
    return trial.changed(certificate=trial.certificate.changed(caveat=both))
