"""A finished run's directory, read back: its recommendation and its trials."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from loadgen.errors import BadInput, first_problem
from search.records.line_files import read_records
from search.records.recommendation import AnyRecommendation, NoRecommendationRecord, RecommendationRecord
from search.records.trial import TrialRecord

TRIALS_FILE = "trials.jsonl"

RECOMMENDATION_FILE = "recommendation.json"


def read_recommendation(directory: Path) -> RecommendationRecord:
    """Return the recommendation of a run. Raises BadInput if there is none, or it cannot be read."""
    found = read_outcome(directory)
    if isinstance(found, NoRecommendationRecord):
        raise BadInput(
            f"The run in {directory} recommends nothing. {found.status_reason}",
            f"optimize report {directory} shows its trials; go on with optimize --resume {directory}",
        )
    return found


def recommendation_if_any(directory: Path) -> RecommendationRecord | None:
    """Return the recommendation of a run; None if there is none. Raises BadInput if it cannot be read."""
    if not (directory / RECOMMENDATION_FILE).is_file():
        return None
    found = read_outcome(directory)
    return found if isinstance(found, RecommendationRecord) else None


def read_outcome(directory: Path) -> AnyRecommendation:
    """Return how a run ended. Raises BadInput if it has not ended, or its file cannot be read."""
    path = directory / RECOMMENDATION_FILE
    try:
        text = path.read_bytes()
        kind = NoRecommendationRecord if _has_no_winner(text) else RecommendationRecord
        return kind.model_validate_json(text)
    except (FileNotFoundError, NotADirectoryError):
        raise _no_recommendation(directory) from None
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.", "Check it and its permissions.") from error
    except ValidationError as error:
        raise BadInput(
            f"{path} is not a recommendation: {first_problem(error)}.",
            "It was cut short, changed, or written by another version; run optimize again.",
        ) from error


def _has_no_winner(text: bytes) -> bool:
    try:
        data = json.loads(text)
    except ValueError:  # the record's validation reports it
        return False
    return isinstance(data, dict) and data.get("winner", data) is None


def read_trials(directory: Path) -> tuple[TrialRecord, ...]:
    """Return the finished trials in order; empty if there is no file. Raises BadInput if it is damaged."""
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
