"""Measure the service times of one kind on the bench."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from itertools import zip_longest

from model_repo.spec import ServingConfig
from search.labels import knobs_text
from search.records.trial import WhyRecord
from search.simulator.ensemble_surrogate import EnsembleSurrogate
from search.simulator.service_times import NotMeasured, ServiceCurve, measure_curve, run_loops
from search.simulator.surrogate import Surrogate
from search.space import Knobs, knobs_of
from search.study.trial_runner import TrialRunner, ran_out_of_memory
from search.trials import events
from search.trials.bench import BenchFailed, Spent
from search.trials.trial import Trial, trial_of

log = logging.getLogger("tritune.profiling")

SMALLER = 3  # steps on the axis of batch sizes, after a configuration could not be served


MEMBERS_SIZES = (1.0, 0.5, 0.0)
"""Shares of the axes of batch sizes of all members, likewise."""


def measure_service_times(runner: TrialRunner, surrogate: Surrogate, knobs: Knobs) -> None:
    """Measure one kind with the largest batches that can be served; record a failed trial for larger ones."""
    for size in runner.store.space.values["max_batch_size"][::-SMALLER]:
        asked_for: Knobs = {**knobs, "max_batch_size": size}
        if not runner.promising(asked_for):
            continue
        config = runner.store.space.config(asked_for)
        runner.on_event(events.PhaseStarted(name="profile", detail=knobs_text(config)))
        before = replace(runner.bench.spent)
        try:
            runner.bench.load(config)
            curve = _measured_curve(runner, surrogate, config)
        except BenchFailed as failure:
            _record_failure(runner, asked_for, failure, runner.bench.spent.since(before))
            continue
        except NotMeasured as reason:
            log.warning("%s was not profiled: %s", knobs_text(config), reason)
            return
        log.info("profile of %s: %s", knobs_text(config), curve)
        surrogate.learn(knobs, curve)
        return


def _measured_curve(runner: TrialRunner, surrogate: Surrogate, config: ServingConfig) -> ServiceCurve:
    """Return the curve of the loaded configuration; if requests differ in shape, one for each profiled shape."""
    shapes = runner.workload.shapes
    largest = max(config.max_batch_size // runner.workload.rows_per_request, 1)
    loops = [runner.bench.saturate]
    if shapes is not None:
        loops = [partial(runner.bench.saturate, shape=shape) for shape in shapes.profiled]
        largest = min(largest, shapes.longest_run)
    alone = surrogate.curves.get(surrogate.kind_of(knobs_of(config)), {}).get(1)
    of_one = () if alone is None else (alone, *alone.larger)
    smallest, *larger = (
        measure_curve(
            saturate,
            instances=config.instance_count,
            max_batch_size=largest,
            limit_s=runner.slo.first.limit_s,
            seed=runner.seed,
            executed_sizes=surrogate.executed_sizes(config),
            alone=its_alone,
        )
        for saturate, its_alone in zip_longest(loops, of_one[: len(loops)])
    )
    return replace(smallest, larger=tuple(larger))


def measure_members(runner: TrialRunner, surrogate: EnsembleSurrogate, counts: float | None) -> bool:
    """Measure all members at once, with the largest batches that can be served, if any.

    `counts`: their instances, as `SearchSpace.spread` takes them. False: others would fail as well.
    """
    reason = ""
    space = runner.store.space
    for sizes in MEMBERS_SIZES:
        asked_for = space.spread(sizes, counts)
        config = space.config(asked_for)
        # Also without the queue delays of members that keep theirs: no lone time has them.
        config = replace(config, members=tuple(replace(one, max_queue_delay_us=0) for one in config.members))
        if not space.is_legal(asked_for) or not runner.promising(asked_for):
            continue
        runner.on_event(events.PhaseStarted(name="profile", detail=knobs_text(config)))
        before = replace(runner.bench.spent)
        largest = max(member.max_batch_size for member in config.members) // runner.workload.rows_per_request
        try:
            runner.bench.load(config)
            loops = run_loops(
                runner.bench.saturate,
                instances=max(member.instance_count for member in config.members),
                max_batch_size=max(largest, 1),
                limit_s=runner.slo.first.limit_s,
                seed=runner.seed,
            )
            surrogate.learn_members(config, loops)
        except BenchFailed as failure:
            _record_failure(runner, asked_for, failure, runner.bench.spent.since(before))
            reason = failure.reason
            continue
        except NotMeasured as missing:
            log.warning("%s was not profiled: %s", knobs_text(config), missing)
            return False
        return True
    return ran_out_of_memory(reason)


def _record_failure(runner: TrialRunner, knobs: Knobs, failure: BenchFailed, spent: Spent) -> None:
    log.warning("profiling failed: %s", failure.reason)

    def failed(config: ServingConfig, number: int) -> Trial:
        return trial_of(number, config, "failed", failure.reason, spent=spent)

    asked = runner.store.ask_for([knobs], wanted=lambda _: True)
    if asked is not None:
        runner.run_trial(asked, failed, WhyRecord(cause="profile"))
