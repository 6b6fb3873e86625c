"""A finished run's directory, read back: its recommendation and its trials."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import ValidationError

from loadgen.user_errors import BadInput, first_problem
from model_repo.kept_files import read_kept
from search.files import read_records
from search.ledger import TRIALS_FILE
from search.records import RecommendationRecord, TrialRecord

if TYPE_CHECKING:
    from pathlib import Path

RECOMMENDATION_FILE = "recommendation.json"


def read_recommendation(directory: Path) -> RecommendationRecord:
    """What the run recommended. Raises BadInput where it found nothing, was not finished, or cannot be read."""
    path = directory / RECOMMENDATION_FILE
    try:
        return RecommendationRecord.model_validate_json(read_kept(directory, RECOMMENDATION_FILE))
    except (FileNotFoundError, NotADirectoryError):
        raise _no_recommendation(directory) from None
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.", "Check it and its permissions.") from error
    except ValidationError as error:
        raise BadInput(
            f"{path} is not a recommendation: {first_problem(error)}.",
            "It was cut short, changed, or written by another version; run optimize again.",
        ) from error


def read_trials(directory: Path) -> tuple[TrialRecord, ...]:
    """The finished trials in order; empty where there is no trials file. Raises BadInput for a damaged one."""
    return read_records(directory / TRIALS_FILE, TrialRecord, what="a trial")


def _no_recommendation(directory: Path) -> BadInput:
    if not directory.is_dir():
        return BadInput(
            f"{directory} is not a directory.", "Give the directory of a run, such as runs/MODEL-TIME."
        )
    trials = read_trials(directory)
    if not trials:
        return BadInput(
            f"{directory} holds no finished run: there is no {RECOMMENDATION_FILE} in it.",
            "Give the directory that optimize named as its output.",
        )
    if not any(trial.state == "complete" for trial in trials):
        return BadInput(
            f"The run in {directory} was not finished, or nothing keeps its limit ({len(trials)} trials).",
            f"optimize report {directory} shows its trials; go on with optimize --resume {directory}",
        )
    return BadInput(
        f"The run in {directory} was not finished: {len(trials)} trials, and nothing certified.",
        f"Finish it with optimize --resume {directory}",
    )
