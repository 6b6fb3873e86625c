"""Run a search, guided by the simulator if it can predict, else by the sampler; `search.json` has its settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

from pydantic_core import to_json

from loadgen.files import write_atomically
from model_repo.spec import ServingConfig
from search.records.trial import WhyRecord
from search.simulator.ensemble_surrogate import EnsembleSurrogate
from search.space import Knobs, knobs_of
from search.study.ensemble_search import EnsembleSearch
from search.study.guided_search import GuidedSearch, surrogate_for
from search.study.trial_runner import TrialRunner
from search.trials.capacity_trial import run_capacity_or_rate_trial
from search.trials.trial import Trial

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
        most_threads, fewest = space.intra_op_threads[-1], space.instance_counts[0]
        least_threads = min(filter(None, space.intra_op_threads), default=most_threads)
        sizes = space.max_batch_sizes
        for engine in space.axes()["engine"]:
            widest = space.most_instances(str(engine))
            for size in dict.fromkeys((sizes[len(sizes) // 2], sizes[0], sizes[-1])):
                for instances, threads in dict.fromkeys(((widest, least_threads), (fewest, most_threads))):
                    knobs: Knobs = {
                        "engine": engine,
                        "max_batch_size": size,
                        "instance_count": instances,
                        "intra_op_threads": threads,
                        "max_queue_delay_us": space.max_queue_delays_us[0],
                    }
                    if space.has_cuda_graphs:
                        knobs["cuda_graphs"] = space.cuda_graphs[-1]
                    if space.is_legal(knobs):
                        yield knobs


SEARCH_FILE = "search.json"


def write_search(runner: TrialRunner) -> None:
    """Write the space, the machine that it was made for, the SLO, the seed and the time budget."""
    space = runner.store.space
    axes = ("max_batch_sizes", "instance_counts", "intra_op_threads", "max_queue_delays_us", "limits")
    search = {
        "schema_version": 2,
        "engines": space.axes()["engine"],
        **{name: getattr(space, name) for name in axes},
        "members": {knob: values for knob, values in space.axes().items() if "." in knob},
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
