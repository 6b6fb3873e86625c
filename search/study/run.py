"""Run a search, guided by the simulator if it can predict, else by the sampler; `search.json` has its settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import combinations, islice, product

from pydantic_core import to_json

from loadgen.files import write_atomically
from model_repo.spec import ServingConfig
from search.records.trial import WhyRecord
from search.simulator.ensemble_surrogate import EnsembleSurrogate
from search.simulator.service_times_file import write_curves
from search.simulator.surrogate import Predicted
from search.space import Knobs, knobs_of
from search.study.guided_search import PROFILE_SHARE, GuidedSearch, surrogate_for
from search.study.profiling import measure_members
from search.study.trial_runner import TrialRunner
from search.trials import events
from search.trials.capacity_trial import run_capacity_or_rate_trial
from search.trials.trial import Trial

SCALES = (None, 1.0, 0.5)
"""Members are profiled with the baseline's instances, the most, and those between, for they share the cores."""

STARTS = ((1.0, 1.0), (0.5, 1.0), (0.0, 1.0), (1.0, None), (0.5, None), (0.0, None))
"""Besides the baseline: shares of the axes of all members' batches and instances."""

CHUNK = 32
"""Points are simulated 32 at a time, and the time is looked at between."""

CLIMB_SHARE = 0.1
"""Climbing may take 10 % of the time that is left for the search, each time: the best so far is tried then."""

STEP = 1.003
"""A step upwards raises the prediction by 0.3 % or more."""


@dataclass(slots=True)
class EnsembleSearch(GuidedSearch):
    """The search of one ensemble; `run` once."""

    surrogate: EnsembleSurrogate
    _climb_until_s: float = 0.0

    def run(self) -> bool:
        """Run the search; False if it has to continue without predictions, because they are missing or wrong."""
        if not self.surrogate.predictable:
            text = "Ensembles are simulated only with inputs of one shape, a model per step, and no calls."
            self.runner.on_event(events.Note(text=f"{text[:-1]}: the search goes without the simulator."))
            return False
        return super(EnsembleSearch, self).run()

    def _profile_all(self, *, first: Knobs) -> None:
        """Profile the members at three scales, then verify the baseline."""
        runner, budget = self.runner, self.runner.budget
        until_s = budget.elapsed_s() + PROFILE_SHARE * budget.search_left_s()
        for counts in SCALES:
            known = self.surrogate.profiled_at(runner.store.space.spread(1.0, counts))
            if known or runner.stop() or (self.surrogate.curves and budget.elapsed_s() > until_s):
                continue
            if not measure_members(runner, self.surrogate, counts):
                break
            write_curves(runner.store.path.parent, self.surrogate.curves)
        if runner.may_go_on():
            self._verify_baseline(first)
        runner.share(self.surrogate.curves)

    def _profile_again(self) -> bool:
        """Return False: what remains is corrected by replays."""
        return False

    def _profile_more(self) -> bool:
        """Return False: all kinds are known."""
        return False

    def _simulate_all(self) -> list[Knobs]:
        """Climb from each start."""
        self._begin_to_climb()
        space = self.runner.store.space
        starts = (space.spread(sizes, counts) for sizes, counts in STARTS)
        for start in (knobs_of(space.baseline()), *filter(space.is_legal, starts)):
            self._climb(start)
        return [one.knobs for one in self.surrogate.best_first()]

    def candidates(self, then_s: float = 0.0, *, by_luck: bool = False) -> Iterator[Predicted]:
        """Climb on from the best, as measurements have moved the predictions."""
        self._correct()
        if not self.runner.budget.searched_s:  # certification has no time for it
            self._begin_to_climb()
            for best in self.surrogate.best_first()[:1]:
                self._climb(best.knobs)
        return super(EnsembleSearch, self).candidates(then_s, by_luck=by_luck)

    def _without_batches(self) -> list[Knobs]:
        return [self.runner.store.space.spread(0.0, counts) for counts in SCALES]

    def _begin_to_climb(self) -> None:
        budget = self.runner.budget
        self._climb_until_s = budget.elapsed_s() + CLIMB_SHARE * max(0.0, budget.search_left_s())

    def _may_climb(self) -> bool:
        return not self.runner.stop() and self.runner.budget.elapsed_s() <= self._climb_until_s

    def _climb(self, start: Knobs) -> None:
        """Step upwards until no step of one knob, or of two, raises the prediction."""
        self.surrogate.simulate([start])
        at = self.surrogate.predicted(start)
        while at is not None and at.rate_per_s > 0 and self._may_climb():
            steps = list(self.runner.store.space.adjacent(at.knobs))
            at = self._best_above(steps, at) or self._best_above(self._pairs(at.knobs, steps), at)

    def _best_above(self, points: Iterable[Knobs], at: Predicted) -> Predicted | None:
        space, above = self.runner.store.space, list[Knobs]()
        worth = (knobs for knobs in points if space.has(knobs) and self.runner.promising(knobs))
        while (some := list(islice(worth, CHUNK))) and self._may_climb():
            above += self.surrogate.above(some, STEP * at.at_best)
        self.surrogate.simulate(above)
        predicted = [one for knobs in above if (one := self.surrogate.predicted(knobs)) is not None]
        better = [one for one in predicted if one.at_best > STEP * at.at_best]
        return max(better, key=lambda one: one.at_best, default=None)

    def _pairs(self, knobs: Knobs, steps: list[Knobs]) -> Iterator[Knobs]:
        """Yield the legal points that two steps together lead to: if two members saturate, neither alone helps."""
        changes = [{name: value for name, value in step.items() if value != knobs[name]} for step in steps]
        together = (one | other for one, other in combinations(changes, 2) if not one.keys() & other.keys())
        return filter(self.runner.store.space.is_legal, (knobs | both for both in together))


SAMPLED_TRIALS = 6
"""Trials that the sampler chooses before points adjacent to the best are tried; it chooses again after them only
while they keep improving."""


@dataclass(slots=True)
class SamplerSearch:
    """Every trial searches for its capacity, or until it cannot beat the best."""

    runner: TrialRunner
    measure: Callable[[TrialRunner, ServingConfig, int], Trial | None] = run_capacity_or_rate_trial
    _sampled: int = 0

    def run(self) -> None:
        """Try configurations until nothing promising is left, the budget is used, or `stop` returns True."""
        while self.runner.may_go_on():
            self.runner.collect_finished()
            asked, why = self._next()
            if asked is not None:
                landmarks = ((knobs, WhyRecord(cause="landmark")) for knobs in self._landmarks())
                self.runner.hand_out(landmarks)
                self.runner.run_trial(asked, partial(self.measure, self.runner), why)
            elif not self.runner.wait_for_workers():
                return

    def _next(self) -> tuple[Knobs | None, WhyRecord]:
        store, wanted = self.runner.store, self.runner.promising
        space = store.space
        baseline = [knobs_of(space.baseline())]
        if (asked := store.ask_for(baseline, wanted=wanted)) is not None:
            return asked, WhyRecord(cause="baseline")
        start = [] if space.start is None else [knobs_of(space.start)]
        if (asked := store.ask_for(start, wanted=wanted)) is not None:
            return asked, WhyRecord(cause="start")
        if (asked := store.ask_for(self._landmarks(), wanted=wanted)) is not None:
            return asked, WhyRecord(cause="landmark")
        if self._sampled < SAMPLED_TRIALS:
            self._sampled += 1
            if (asked := store.ask_sampler(wanted=wanted)) is not None:
                return asked, WhyRecord(cause="sampler")
        best = store.best()
        around = space.adjacent(knobs_of(best.served)) if best is not None else ()
        return store.ask_for(around, wanted=wanted), WhyRecord(cause="adjacent")

    def _landmarks(self) -> Iterator[Knobs]:
        """Yield a few points that span the space: batch sizes and instance counts, small and large."""
        space = self.runner.store.space
        if space.members:
            points = (space.spread(sizes, counts) for sizes, counts in product((0.5, 0.0, 1.0), (1.0, 0.0)))
            yield from filter(space.is_legal, points)
            return
        axes, values = space.axes(), space.values
        most_threads, fewest = values["intra_op_threads"][-1], values["instance_count"][0]
        least_threads = min(filter(None, values["intra_op_threads"]), default=most_threads)
        sizes, delay_us = values["max_batch_size"], values["max_queue_delay_us"][0]
        for engine in axes["engine"]:
            widest = space.most_instances(str(engine))
            for size in dict.fromkeys((sizes[len(sizes) // 2], sizes[0], sizes[-1])):
                for instances, threads in dict.fromkeys(((widest, least_threads), (fewest, most_threads))):
                    knobs: Knobs = {name: axis[-1] for name, axis in axes.items()}
                    knobs |= {"engine": engine, "max_batch_size": size, "max_queue_delay_us": delay_us}
                    knobs |= {"instance_count": instances, "intra_op_threads": threads}
                    if space.is_legal(knobs):
                        yield knobs


SEARCH_FILE = "search.json"


def write_search(runner: TrialRunner) -> None:
    """Write the space, the machine that it was made for, the SLO, the seed and the time budget."""
    space = runner.store.space
    search = {
        "schema_version": 3,
        "knobs": space.axes(),
        "limits": space.limits,
        "slo": runner.slo,
        "workload": runner.workload.record,
        "objective": runner.objective.record,
        "seed": runner.seed,
        "time_budget_s": runner.budget.total_s,
    }
    text = to_json(search, indent=1).decode()
    write_atomically(runner.store.path.parent / SEARCH_FILE, text + "\n")


def run_search(runner: TrialRunner) -> GuidedSearch | None:
    """Try configurations until nothing promising is left, the budget is used, or `runner.stop` returns True.

    Return the guided search, which certification goes on with; None if there was none, or it could not predict.
    """
    write_search(runner)
    surrogate, others = surrogate_for(runner), {limit.model for limit in runner.slo.colocated}
    guided = EnsembleSearch if isinstance(surrogate, EnsembleSurrogate) else GuidedSearch
    # Nobody knows when a model calls others, and how often. Colocated models that stay as they are slow down its
    # executions, which are profiled under their load.
    alone = all(member.name in others and member.size() == 1 for member in runner.store.space.members)
    search = guided.of(runner, surrogate) if alone or guided is EnsembleSearch else None
    found = search if search is not None and search.run() else None
    if found is None:
        SamplerSearch(runner).run()
    runner.collect_finished()
    return found
