"""The execution times of one kind, measured on the bench."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING

from search import events
from search.bench import BenchFailed
from search.service_time import NotMeasured, measure_curve
from search.space import knobs_of
from search.trial import failed_trial
from search.why import WhyRecord
from search.words import knobs_text

if TYPE_CHECKING:
    from model_repo.spec import ServingConfig
    from search.attempts import Attempts
    from search.bench import Spent
    from search.forecast import Forecast
    from search.service_time import ServiceCurve
    from search.space import Knobs
    from search.trial import Trial

log = logging.getLogger("tritune.profiling")

SMALLER = 3  # steps on the axis of batch sizes, after a configuration could not be served


def profile_kind(attempts: Attempts, forecast: Forecast, knobs: Knobs) -> None:
    """Measure one kind with as large batches as can be served; what cannot be is a failed trial."""
    for size in attempts.ledger.space.max_batch_sizes[::-SMALLER]:
        asked_for: Knobs = {**knobs, "max_batch_size": size}
        if not attempts.promising(asked_for):
            continue
        config = attempts.ledger.space.config(asked_for)
        attempts.on_event(events.PhaseStarted(name="profile", detail=knobs_text(config)))
        before = replace(attempts.bench.spent)
        try:
            attempts.bench.load(config)
            curve = _measured(attempts, forecast, config)
        except BenchFailed as failure:
            _record_failure(attempts, asked_for, failure, attempts.bench.spent.since(before))
            continue
        except NotMeasured as reason:
            log.warning("%s was not profiled: %s", knobs_text(config), reason)
            return
        log.info("profile of %s: %s", knobs_text(config), curve)
        forecast.curves[forecast.kind_of(knobs)][config.instance_count] = curve
        return


def _measured(attempts: Attempts, forecast: Forecast, config: ServingConfig) -> ServiceCurve:
    """The curve of what is being served, with those of larger requests where these differ in shape."""
    shapes = attempts.demand.shapes
    largest = max(config.max_batch_size // attempts.demand.rows_per_request, 1)
    loops = [attempts.bench.saturate]
    if shapes is not None:
        loops = [partial(attempts.bench.saturate, shape=shape) for shape in shapes.profiled]
        largest = min(largest, shapes.longest_run)
    alone = forecast.curves.get(forecast.kind_of(knobs_of(config)), {}).get(1)
    of_one = () if alone is None else (alone, *alone.larger)
    smallest, *larger = (
        measure_curve(
            saturate,
            instances=config.instance_count,
            max_batch_size=largest,
            limit_s=attempts.slo.limit_ms / 1e3,
            seed=attempts.seed,
            executed_sizes=forecast.executed_sizes(config),
            alone=its_alone,
        )
        for saturate, its_alone in zip_longest(loops, of_one[: len(loops)])
    )
    return replace(smallest, larger=tuple(larger))


def _record_failure(attempts: Attempts, knobs: Knobs, failure: BenchFailed, spent: Spent) -> None:
    log.warning("profiling failed: %s", failure.reason)

    def failed(config: ServingConfig, number: int) -> Trial:
        return failed_trial(number, config, failure.reason, spent)

    asked = attempts.ledger.ask_for([knobs], wanted=lambda _: True)
    if asked is not None:
        attempts.make(asked, failed, WhyRecord(cause="profile"))
