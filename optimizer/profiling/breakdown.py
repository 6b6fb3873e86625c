"""Explain the request time of the recommendation and of the baseline, once the search is over."""

from __future__ import annotations

import logging
import math
import time

from model_repo.repository.config_pbtxt import executed_batch_sizes
from optimizer.errors import RunFailed
from optimizer.model.checks import plain, shortened
from optimizer.model.onnx_model import Model
from optimizer.profiling.layer_profile import Execution, profile_engine
from optimizer.profiling.text import time_summary
from search.records.engine_profile import EngineProfileRecord, TimeUseRecord
from search.trials import events
from search.trials.events import OnEvent
from search.trials.trial import Trial

log = logging.getLogger("tritune")


def time_use_of(
    winner: Trial,
    baseline: Trial | None,
    *,
    model: Model,
    here: bool = True,
    seed: int = 0,
    most_s: float = math.inf,
    on_event: OnEvent = events.ignore,
) -> TimeUseRecord | None:
    """Return the run's record of its request time; None if the server gave no timings.

    `model` is the source of the engines, and gives their inputs. `here` False: the server is on another machine,
    so nothing is profiled. An engine that cannot be profiled, or not in `most_s`, is left out with a note: the
    recommendation is valid without it.
    """
    other = None if baseline is None or baseline.number == winner.number else baseline
    profiles: dict[Execution, EngineProfileRecord | None] = {}
    until_s = time.monotonic() + most_s

    def profile_of(trial: Trial | None) -> EngineProfileRecord | None:
        execution = None if trial is None or not here else _execution(trial, model, seed, until_s)
        if execution is None:
            return None
        if execution not in profiles:
            profiles[execution] = _profiled(execution, on_event)
        return profiles[execution]

    profile = profile_of(winner)
    summary = time_summary(winner, profile, other)
    return TimeUseRecord(summary=summary, winner=profile, baseline=profile_of(other)) if summary else None


def _execution(trial: Trial, model: Model, seed: int, until_s: float) -> Execution | None:
    """Return an execution of the trial's mean batch size, as it is padded; None if that is not known."""
    measured, config = trial.measurement, trial.served
    mean = None if measured is None or measured.server is None else measured.server.mean_batch_size
    if mean is None:
        return None
    batch = max(1, round(mean)) if config.engine.batched else 1
    batch = next((size for size in executed_batch_sizes(config) if size >= batch), batch)
    return Execution(
        engine=config.engine,
        model=model,
        batch_size=batch,
        threads=config.intra_op_threads,
        graphs=bool(config.cuda_graph_batch_sizes),
        seed=seed,
        until_s=until_s,
    )


def _profiled(execution: Execution, on_event: OnEvent) -> EngineProfileRecord | None:
    on_event(events.PhaseStarted(name="finish", detail=f"profiling {execution.engine.precision}"))
    try:
        return profile_engine(execution)
    except Exception as error:  # the recommendation is certified already: no failure to explain it may lose it
        log.exception("no profile of %s", execution.engine.model_file)
        reason = shortened(plain(error.reason if isinstance(error, RunFailed) else str(error)))
        on_event(events.Note(text=f"The layers' times are not known: {reason}", warning=True))
        return None
