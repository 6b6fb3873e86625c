"""Everything a report shows, read from a run's directory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from optimizer.config import RUN_FILE, saved_config
from optimizer.model_source import stem_of
from search.importance import knob_importances
from search.run_files import RECOMMENDATION_FILE, read_recommendation, read_trials

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from optimizer.config import OptimizeConfig
    from search.accuracy_record import AccuracyRecord
    from search.records import RecommendationRecord, Slo, TrialRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A run's files. `found` is None for a run that found nothing or has not ended, `config` where it is not kept.

    `importances` are shares per knob; empty where there are too few trials to tell.
    """

    directory: Path
    model_name: str
    slo: Slo
    found: RecommendationRecord | None
    trials: tuple[TrialRecord, ...]
    config: OptimizeConfig | None
    importances: Mapping[str, float] = field(default_factory=dict)

    @property
    def baseline(self) -> TrialRecord | None:
        """Triton's default configuration where it is another one than the winner's."""
        if self.found is None or self.found.baseline is None:
            return None
        return None if self.found.baseline.number == self.found.winner.number else self.found.baseline

    @property
    def on_gpu(self) -> bool:
        """Whether the machine has a GPU."""
        return self.found is not None and bool(self.found.machine.gpus)

    @property
    def accuracy(self) -> tuple[AccuracyRecord, ...]:
        """How close each precision is to fp32, where it was looked at."""
        return () if self.found is None else self.found.accuracy


def read_evidence(directory: Path) -> Evidence:
    """What `directory` holds. Raises BadInput where that is no run, or its files are damaged."""
    has_config = (directory / RUN_FILE).is_file()
    config = saved_config(directory) if has_config else None
    trials = read_trials(directory)
    if config is None or (directory / RECOMMENDATION_FILE).is_file():
        found = read_recommendation(directory)
        slo, name = found.slo, found.model.name
    else:
        found, slo = None, config.slo
        name = stem_of(config.model)
    return Evidence(
        directory=directory,
        model_name=name,
        slo=slo,
        found=found,
        trials=trials,
        config=config,
        importances=knob_importances(trials),
    )
