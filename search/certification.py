"""From estimates to a promise: the best configuration must keep the limit under fresh arrivals, twice."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from loadgen.confirm import OF_WHAT_IT_SERVED
from search import events
from search.bench import BenchFailed
from search.certifier import LEAST_S, Certifier, confidence_of_a_run, joined
from search.confirmable import LAST_RESORT_SHARE, first_share
from search.demand import Demand
from search.replays import Replays
from search.steadiness import steadiness_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from search.bench import Bench
    from search.budget import Budget
    from search.ledger import Ledger
    from search.records import Slo
    from search.trial import Trial

WHEN_STOPPED_S = 30.0
SHARE_WHEN_STOPPED = 0.8
"""What certification may still take after the user has asked to finish, and the share of the estimate it tries:
further from the limit fewer requests decide."""

BASELINE_AT_LEAST_S, BASELINE_OF_WINNER = 15.0, 0.5
"""What certifying the baseline may take in seconds, or so much of what the winner took: it is there to be compared
with."""

SHARE_FOR_FIRST_RUN = 0.5
SHARE_FOR_SECOND_RUN = 0.6
"""Of what is left of the budget. The rest is for the next candidate or a last try at `LAST_RESORT_SHARE`, as a low
promise beats none; after the second run it is the baseline's."""

LAST_RESORTS, LOWER_EACH_TIME, LAST_RESORT_S = 3, 0.7, 15.0
"""How many last tries there are, by how much each is lower than the one before, and the seconds that another one
takes at the least."""

NEARLY = 0.97
"""A candidate gives way when its rate has fallen to this share of what the next one is expected to keep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certified:
    """The winner with its certificate; the baseline with one too where there was time for it."""

    winner: Trial
    baseline: Trial | None


def certify_best(
    ledger: Ledger,
    bench: Bench,
    *,
    slo: Slo,
    budget: Budget,
    seed: int,
    demand: Demand | None = None,
    on_event: events.OnEvent = events.ignore,
    stop: Callable[[], bool] = lambda: False,
) -> Certified | None:
    """The best trial whose rate is confirmed twice, the second time on a fresh server; None if no trial's is.

    What fails is tried again at a lower rate, until the runner-up promises more. After `stop` only one
    confirmation is made, in half a minute at most.
    """
    hurried = stop()
    deadline_s = budget.elapsed_s() + WHEN_STOPPED_S if hurried else None
    certifier = Certifier(
        bench=bench,
        slo=slo,
        objective=ledger.objective,
        budget=budget,
        seed=seed,
        directory=ledger.path.parent,
        demand=demand or Demand(),
        deadline_s=deadline_s,
        confidence=slo.confidence if hurried else confidence_of_a_run(slo.confidence),
        on_event=on_event,
        steadiness=steadiness_of(ledger.current),
        replays=Replays.of_run(ledger, slo=slo, seed=seed, demand=demand or Demand()),
    )
    if certifier.steadiness.text is not None and not hurried:
        text = f"While the search measured, {certifier.steadiness.text}: lower rates are confirmed, for longer."
        on_event(events.Note(text=text, warning=True))
    objective = ledger.objective
    ranked = objective.best_first(ledger.current) or objective.best_first(ledger.trials)
    candidates = [trial for trial in ranked if trial.rate_at_limit_per_s]
    if objective.name == "cost":
        candidates.sort(key=certifier.estimate_of, reverse=True)
    load_before_s = bench.spent.load_s
    winner = _winner(certifier, candidates, hurried=hurried, stop=stop)
    if winner is None:
        return None
    # The last of them: where the machine has changed its speed, the baseline was tried again.
    defaults = [trial for trial in ledger.trials if trial.config == ledger.space.baseline(trial.config.engine)]
    baseline = defaults[-1] if defaults else None
    if baseline is not None and baseline.number == winner.number:
        return Certified(winner=winner, baseline=winner)
    if baseline is not None and baseline.state == "complete" and not stop():
        most_s = max(BASELINE_AT_LEAST_S, BASELINE_OF_WINNER * (bench.spent.load_s - load_before_s))
        baseline = _confirmed_baseline(certifier, baseline, most_s)
        mine, other = objective.certified_worth(winner), objective.certified_worth(baseline)
        if mine is not None and other is not None and other > mine:
            # On a machine that is not steady the estimates may have been luck: what was confirmed decides.
            does = "keeps more than" if objective.name == "cost" else "does better than"
            text = f"The default configuration {does} trial {winner.number}, so it is the answer."
            on_event(events.Note(text=text))
            winner = baseline = _confirmed_again(certifier, baseline)
    return Certified(winner=winner, baseline=baseline)


def _winner(
    certifier: Certifier, candidates: list[Trial], *, hurried: bool, stop: Callable[[], bool]
) -> Trial | None:
    """The first candidate that is confirmed and, on a fresh server too, takes no more memory than it may."""
    if not candidates:
        return None
    if hurried:
        winner = _loaded_and_confirmed(
            certifier, candidates[0], from_share=SHARE_WHEN_STOPPED, budget_s=certifier.left_s()
        )
    else:
        winner = _first_confirmed(certifier, candidates)
        if winner is None:
            certifier.make_up()
            winner = _last_resorts(certifier, candidates, stop)
    if winner is None:
        return None
    if stop():
        return _with_caveat(winner, "the run was stopped before it could be confirmed again")
    winner = _confirmed_again(certifier, winner)
    if certifier.fits(winner):
        return winner
    others = [trial for trial in candidates if trial.number != winner.number]
    return _winner(certifier, others, hurried=hurried, stop=stop)


def _confirmed_baseline(certifier: Certifier, baseline: Trial, most_s: float) -> Trial:
    budget_s = min(most_s, certifier.share_of_time(1.0))
    share = first_share(baseline, certifier.slo, budget_s)
    if budget_s < certifier.least_s(certifier.rate_to_try(baseline, share)):
        return baseline  # so few requests decide nothing, and its estimate is enough to be compared with
    return _loaded_and_confirmed(certifier, baseline, from_share=share, budget_s=budget_s) or baseline


def _first_confirmed(certifier: Certifier, candidates: list[Trial]) -> Trial | None:
    """The first candidate that is confirmed before it has fallen below what the next should keep, where rates are
    compared, or below what a last resort would try.
    """
    for index, trial in enumerate(candidates):
        budget_s = SHARE_FOR_FIRST_RUN * certifier.left_s()
        share = first_share(trial, certifier.slo, budget_s)
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
    """One last resort after the other, each lower, while there is time: one alone may meet a machine that stands
    still, which ends it early.
    """
    for times in range(LAST_RESORTS):
        if times and (stop() or certifier.left_s() < LAST_RESORT_S):
            return None
        winner = _last_resort(certifier, candidates, lower=LOWER_EACH_TIME**times)
        if winner is not None:
            return winner
    return None


def _last_resort(certifier: Certifier, candidates: list[Trial], *, lower: float) -> Trial | None:
    """The best candidate at a rate far below its estimate; the best by what was seen last, where all broke.

    A machine that has become slower since the estimates has become so for every candidate: none keeps what was
    expected of it, and what each served meanwhile says more.
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
    if budget_s < LEAST_S:
        return None
    try:
        certifier.bench.load(trial.config)
        rate_per_s = certifier.rate_to_try(trial, from_share)
        confirmed = certifier.confirmed(trial, rate_per_s, budget_s=budget_s, floor_per_s=floor_per_s)
        return confirmed if confirmed is not None and certifier.fits(confirmed) else None
    except BenchFailed as failure:
        certifier.lost(trial, failure)
        return None


def _confirmed_again(certifier: Certifier, winner: Trial) -> Trial:
    """The winner after a second confirmation on a restarted server; with a caveat where none was passed.

    Where no rate was kept again, the time of the baseline goes into a far lower one: what was kept only once was
    refuted by then, and a low promise beats one that is known not to hold.
    """
    assert winner.certificate is not None
    budget_s = certifier.share_of_time(SHARE_FOR_SECOND_RUN)
    if budget_s < LEAST_S:
        return _with_caveat(winner, "there was no time to confirm it again on a restarted server")
    try:
        certifier.bench.restart()
        again = certifier.confirmed(winner, winner.certificate.rate_per_s, budget_s=budget_s)
        if again is None and certifier.objective.rate_per_s is None and certifier.left_s() >= LEAST_S:
            lower_per_s = LAST_RESORT_SHARE * winner.certificate.rate_per_s
            again = certifier.confirmed(winner, lower_per_s, budget_s=certifier.left_s())
    except BenchFailed as failure:
        certifier.lost(winner, failure)
        return _with_caveat(winner, "the server failed while it was confirmed again")
    return again or _with_caveat(
        winner, f"it was kept once, but not again on a restarted server: {certifier.last_reason}"
    )


def _with_caveat(trial: Trial, caveat: str) -> Trial:
    assert trial.certificate is not None
    both = joined(trial.certificate.caveat, caveat)
    return replace(trial, certificate=trial.certificate.model_copy(update={"caveat": both}))
