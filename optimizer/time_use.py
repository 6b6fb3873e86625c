"""Where the time of the answer and of Triton's default goes: looked at once the search is over."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from optimizer.engine_profile import Execution, profile_engine
from optimizer.onnx_check import plain, shortened
from optimizer.onnx_run import RunFailed
from optimizer.time_words import time_summary
from search import events
from search.convert import trial_to_record
from search.engine_profile import TimeUseRecord

if TYPE_CHECKING:
    from optimizer.onnx_model import Model
    from search.engine_profile import EngineProfileRecord
    from search.events import OnEvent
    from search.trial import Trial

log = logging.getLogger("tritune")


def time_use_of(
    winner: Trial,
    baseline: Trial | None,
    *,
    model: Model,
    here: bool = True,
    seed: int = 0,
    on_event: OnEvent = events.ignore,
) -> TimeUseRecord | None:
    """What the run writes about it; None where the server gave no timings.

    `model` is what the engines were made of, for inputs that fit. Not `here`: the server is on another machine, so
    nothing is profiled. An engine that cannot be profiled is left out with a note: the answer stands without it.
    """
    other = None if baseline is None or baseline.number == winner.number else baseline
    profiles: dict[Execution, EngineProfileRecord | None] = {}

    def profile_of(trial: Trial | None) -> EngineProfileRecord | None:
        execution = None if trial is None or not here else _execution(trial, model, seed)
        if execution is None:
            return None
        if execution not in profiles:
            profiles[execution] = _profiled(execution, on_event)
        return profiles[execution]

    profile = profile_of(winner)
    summary = time_summary(trial_to_record(winner), profile, None if other is None else trial_to_record(other))
    return TimeUseRecord(summary=summary, winner=profile, baseline=profile_of(other)) if summary else None


def _execution(trial: Trial, model: Model, seed: int) -> Execution | None:
    """What the trial's engine executed most: its mean batch. None where that is not known."""
    measured, config = trial.measurement, trial.config
    mean = None if measured is None or measured.server is None else measured.server.mean_batch_size
    if mean is None:
        return None
    batch = max(1, round(mean)) if config.engine.batched else 1
    return Execution(
        engine=config.engine,
        model=model,
        batch_size=batch,
        threads=config.intra_op_threads,
        graphs=bool(config.cuda_graph_batch_sizes),
        seed=seed,
    )


def _profiled(execution: Execution, on_event: OnEvent) -> EngineProfileRecord | None:
    on_event(events.PhaseStarted(name="finish", detail=f"profiling {execution.engine.precision}"))
    try:
        return profile_engine(execution)
    except Exception as error:  # the answer is certified already, and nothing about its explanation may lose it
        log.exception("no profile of %s", execution.engine.model_file)
        reason = shortened(plain(error.reason if isinstance(error, RunFailed) else str(error)))
        on_event(events.Note(text=f"The layers' times are not known: {reason}", warning=True))
        return None
