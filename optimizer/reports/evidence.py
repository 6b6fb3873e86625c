"""Everything a report shows, read from a run's directory."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import Field

from loadgen.errors import BadInput
from loadgen.spec.limits import LatencyLimit
from optimizer.config import OptimizeConfig
from optimizer.model_source import stem_of
from optimizer.run_file import saved_config, slo_of
from search.answer.recommend import similar_rates
from search.labels import record_text
from search.record import Rate, Record
from search.records.confirmations import ConfirmationRecord, read_confirmations
from search.records.recommendation import AnyRecommendation, RecommendationRecord
from search.records.run_files import (
    PREDICTIONS_FILE,
    RECOMMENDATION_FILE,
    RUN_FILE,
    SPEEDS_FILE,
    PredictedRecord,
    SpeedsRecord,
    from_here,
    read_outcome,
    read_recommendation,
    read_records,
    read_trials,
    runs_in,
)
from search.records.slo import Slo
from search.records.trial import ConfigRecord, MeasurementRecord, TrialRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A run's files. `found` is None for a run that found nothing or has not ended, `outcome` for one that has
    not ended, `config` if it was not kept.
    """

    directory: Path
    model_name: str
    slo: Slo
    found: RecommendationRecord | None
    outcome: AnyRecommendation | None
    trials: tuple[TrialRecord, ...]
    config: OptimizeConfig | None
    confirmations: tuple[ConfirmationRecord, ...] = ()
    speeds: tuple[SpeedsRecord, ...] = ()
    predictions: tuple[PredictedRecord, ...] = ()

    def words(self, config: ConfigRecord) -> str:
        """Return a configuration in words."""
        return record_text(config, on_gpu=self.found is not None and bool(self.found.machine.gpus))


def default_of(found: RecommendationRecord) -> TrialRecord | None:
    """Return the trial of Triton's default configuration if it is not the winner."""
    baseline = found.baseline
    return None if baseline is None or baseline.number == found.winner.number else baseline


def compared_at_one_rate(found: RecommendationRecord) -> list[tuple[TrialRecord, MeasurementRecord]]:
    """Return the winner with its measurement, and Triton's default if it was measured at a similar rate."""
    winner, other = found.winner, default_of(found)
    mine, its = winner.measurement, None if other is None else other.measurement
    if mine is None:
        return []
    if other is None or its is None or not similar_rates(mine.rate_per_s, its.rate_per_s):
        return [(winner, mine)]
    return [(winner, mine), (other, its)]


def read_evidence(directory: Path) -> Evidence:
    """Read the files of `directory`. Raises BadInput if it is no run, or its files are damaged."""
    config = saved_config(directory) if (directory / RUN_FILE).is_file() else None
    trials = read_trials(directory)
    ended = read_outcome(directory) if (directory / RECOMMENDATION_FILE).is_file() else None
    if isinstance(ended, RecommendationRecord) or config is None:
        found = read_recommendation(directory)
        slo, name = found.slo, found.model.name
    else:
        found, slo, name = None, slo_of(config), stem_of(config.model)
    return Evidence(
        directory=directory,
        model_name=name,
        slo=slo,
        found=found,
        outcome=ended,
        trials=trials,
        config=config,
        confirmations=read_confirmations(directory),
        speeds=read_records(directory / SPEEDS_FILE, SpeedsRecord, what="a machine's speed"),
        predictions=read_records(directory / PREDICTIONS_FILE, PredictedRecord, what="a prediction"),
    )


class RunRecord(Record):
    """A run in a folder. `outcome` is its status; `not ended` without one, `unreadable` for damaged files."""

    directory: str = Field(description="Relative to the current directory if it is in there.")
    began_at: datetime = Field(description="When it was started, or resumed.")
    model: str
    outcome: str
    exit_code: int | None
    rate_per_s: Rate | None = Field(description="The certified rate; null if it recommends nothing.")
    limits: tuple[LatencyLimit, ...]


class RunsRecord(Record):
    """`optimize runs --json`: the runs in a folder, that which began last at the end."""

    runs: tuple[RunRecord, ...]


def list_runs(folder: Path) -> RunsRecord:
    """Return the runs in `folder`."""
    return RunsRecord(runs=tuple(map(_listed, runs_in(folder))))


def _listed(directory: Path) -> RunRecord:
    config, ended, outcome = None, None, "unreadable"
    with suppress(BadInput):
        config = saved_config(directory)
        outcome = "not ended"
        if (directory / RECOMMENDATION_FILE).is_file():
            outcome = "unreadable"
            ended = read_outcome(directory)
            outcome = ended.status
    certificate = None if ended is None or ended.winner is None else ended.winner.certificate
    return RunRecord(
        directory=str(from_here(directory)),
        began_at=datetime.fromtimestamp((directory / RUN_FILE).stat().st_mtime, UTC),
        model=directory.name if config is None else stem_of(config.model),
        outcome=outcome,
        exit_code=None if ended is None else ended.exit_code,
        rate_per_s=None if certificate is None else certificate.rate_per_s,
        limits=() if config is None else config.limits,
    )
