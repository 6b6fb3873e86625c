"""The search loop: baseline first, then promising points, the sampler's choices and the best one's neighbours."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from search import events
from search.evaluate import evaluate
from search.space import Knobs, default_config, knobs_of
from search.words import knobs_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import optuna

    from search.bench import Bench
    from search.budget import Budget
    from search.ledger import Ledger
    from search.records import Slo
    from search.trial import Trial

SAMPLED_TRIALS = 6
"""Trials that the sampler chooses before the neighbours of the best are tried; it chooses again after them only
while they keep improving."""

FAILURES_OF_ONE_ENGINE = 4
"""After so many failed trials, and no other, an engine is not tried again; half as many where it has rivals."""


class SearchImpossible(Exception):
    """Trials keep failing one after the other; `reasons` are theirs."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


@dataclass(slots=True)
class Search:
    """One search on one bench. `stop` is asked between trials and while load is running."""

    ledger: Ledger
    bench: Bench
    slo: Slo
    budget: Budget
    seed: int
    on_event: events.OnEvent = events.ignore
    stop: Callable[[], bool] = lambda: False
    _sampled: int = field(default=0)

    def run(self) -> None:
        """Try configurations until nothing promising is left, the budget is used, or `stop` says so."""
        while self._may_go_on():
            asked = self._next()
            if asked is None:
                return
            self._try(asked)

    def _may_go_on(self) -> bool:
        if self.stop():
            return False
        if not self.ledger.trials:
            return True  # the baseline is always tried
        return self.budget.trial_s() >= self._shortest_trial_s()

    def _shortest_trial_s(self) -> float:
        """What even a pruned trial takes: loading, as seen so far, and a moment of load."""
        loadings = [trial.loading_s for trial in self.ledger.trials]
        return sum(loadings) / len(loadings) + 2.0

    def _next(self) -> optuna.trial.Trial | None:
        space = self.ledger.space
        baseline = [knobs_of(default_config(engine)) for engine in space.engines[:1]]
        asked = self.ledger.ask_for([*baseline, *self._landmarks()], wanted=self._promising)
        if asked is None and self._sampled < SAMPLED_TRIALS:
            self._sampled += 1
            asked = self.ledger.ask_sampler(wanted=self._promising)
        best = self.ledger.best()
        if asked is None and best is not None:
            asked = self.ledger.ask_for(space.neighbours(knobs_of(best.config)), wanted=self._promising)
        return asked

    def _landmarks(self) -> Iterator[Knobs]:
        """A few points that span the space: one request at a time, small and large batches, narrow and wide."""
        space = self.ledger.space
        widest = space.instance_counts[-1]
        most_threads = space.intra_op_threads[-1]
        sizes = space.max_batch_sizes
        for engine in space.axes()["engine"]:
            for size in dict.fromkeys((sizes[len(sizes) // 2], sizes[0], sizes[-1])):
                for instances, threads in dict.fromkeys(((widest, min(1, most_threads)), (1, most_threads))):
                    knobs: Knobs = {
                        "engine": engine,
                        "max_batch_size": size,
                        "instance_count": instances,
                        "intra_op_threads": threads,
                        "max_queue_delay_us": 0,
                    }
                    if space.has_cuda_graphs:
                        knobs["cuda_graphs"] = 1
                    if space.is_legal(knobs):
                        yield knobs

    def _promising(self, knobs: Knobs) -> bool:
        """Not an engine that does not work, nor where a trial that asks less has already run out of memory."""
        return knobs["engine"] not in self._broken_engines() and not any(
            trial.state == "failed" and _ran_out_of_memory(trial.reason) and _asks_at_least(knobs, trial)
            for trial in self.ledger.trials
        )

    def _try(self, asked: optuna.trial.Trial) -> None:
        number = self.ledger.next_number()
        config = self.ledger.space.config(asked.params)
        self.on_event(events.TrialStarted(number=number, knobs=knobs_text(config)))
        try:
            trial = evaluate(
                config,
                self.bench,
                number=number,
                slo=self.slo,
                budget_s=self.budget.trial_s() or self.budget.left_s(),
                incumbent=self.ledger.best(),
                seed=self.seed,
                on_event=self.on_event,
                stop=self.stop,
            )
        except BaseException:
            self.ledger.abandon(asked)
            raise
        if trial is None:  # stopped in the middle: nothing was learnt
            self.ledger.abandon(asked)
            return
        self.ledger.record(asked, trial)
        self.on_event(
            events.TrialEnded(
                trial=trial,
                best=self.ledger.best(),
                elapsed_s=self.budget.elapsed_s(),
                budget_s=self.budget.total_s,
            )
        )
        self._give_up_when_nothing_works()

    def _give_up_when_nothing_works(self) -> None:
        if len(self._broken_engines()) == len(self.ledger.space.engines):
            raise SearchImpossible([trial.reason for trial in self.ledger.trials if trial.state == "failed"])

    def _broken_engines(self) -> set[int | str]:
        """Those whose every trial failed, and often enough."""
        engines = self.ledger.space.axes()["engine"]
        enough = FAILURES_OF_ONE_ENGINE if len(engines) == 1 else FAILURES_OF_ONE_ENGINE // 2
        states: dict[int | str, list[str]] = {label: [] for label in engines}
        for trial in self.ledger.trials:
            states[knobs_of(trial.config)["engine"]].append(trial.state)
        return {label for label, seen in states.items() if len(seen) >= enough and set(seen) == {"failed"}}


def _asks_at_least(knobs: Knobs, failed: Trial) -> bool:
    other = knobs_of(failed.config)
    return knobs["engine"] == other["engine"] and all(
        int(knobs[name]) >= int(other[name]) for name in ("max_batch_size", "instance_count")
    )


def _ran_out_of_memory(reason: str) -> bool:
    return re.search(r"out of memory|bad_alloc|MemoryError|cannot allocate", reason, re.IGNORECASE) is not None
