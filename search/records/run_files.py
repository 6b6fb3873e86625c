"""A run's directory: append to its files of lines, and read back its recommendation, its trials and figures."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, BinaryIO, Literal, TypeVar

from pydantic import Field, ValidationError

from loadgen.errors import BadInput, first_problem
from loadgen.files import naming, write_atomically
from search.record import Record
from search.records.recommendation import AnyRecommendation, NoRecommendationRecord, RecommendationRecord
from search.records.trial import ConfigRecord, TrialRecord

AnyRecord = TypeVar("AnyRecord", bound=Record)

TRIALS_FILE = "trials.jsonl"

RECOMMENDATION_FILE = "recommendation.json"

RUN_FILE = "run.json"

RUNS = Path("runs")
"""The folder of runs that got no --output, in the current directory."""

LATEST = "latest"
"""The name of the last run, wherever the directory of one is given."""


def from_here(path: Path) -> Path:
    """Return the path relative to the current directory if it is in there."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def shown_directory(directory: Path) -> str:
    """Return a run's directory as a command line takes it."""
    return shlex.quote(str(from_here(directory)))


def runs_in(folder: Path) -> list[Path]:
    """Return the directories of runs in `folder`, that which was started or resumed last at the end."""
    started = []
    for path in folder.glob(f"*/{RUN_FILE}"):
        with suppress(OSError):  # it has just gone
            started.append((path.stat().st_mtime_ns, path.parent))
    return [directory for _, directory in sorted(started)]


def named_run(directory: Path) -> Path:
    """Return the directory of a run as it was given; for the name `latest` without such a folder, the last run's.

    That is looked for in `runs` next to it. Raises BadInput if there is none.
    """
    if directory.name != LATEST or directory.exists():
        return directory
    runs = runs_in(directory.with_name(RUNS.name))
    if not runs:
        raise BadInput(
            f"There is no latest run: {directory.with_name(RUNS.name)} holds none.", "Give the directory of a run."
        )
    return runs[-1]


def check_files(directory: Path) -> None:
    """Raise BadInput for a FIFO, a device or a socket in a run's directory: to open one can take for ever."""
    with suppress(OSError):  # a file that has just gone
        for path in directory.rglob("*"):
            if path.exists() and not path.is_file() and not path.is_dir():
                raise BadInput(f"{path} is a FIFO, a device or a socket, and no file of a run.", "Remove it.")


def read_recommendation(directory: Path) -> RecommendationRecord:
    """Return the recommendation of a run. Raises BadInput if there is none, or it cannot be read."""
    found = read_outcome(directory)
    if isinstance(found, NoRecommendationRecord):
        raise BadInput(
            f"The run in {directory} recommends nothing. {found.status_reason}",
            "optimize report {0} shows its trials; go on with optimize --resume {0}".format(
                shlex.quote(str(directory))
            ),
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
    if path.exists():
        check_files(directory)
    try:
        text = path.read_bytes()
        with suppress(ValidationError):
            return NoRecommendationRecord.model_validate_json(text)
        return RecommendationRecord.model_validate_json(text)
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
    """Return the finished trials in order; empty if there is no file. Raises BadInput if it is damaged."""
    if (directory / TRIALS_FILE).exists():
        check_files(directory)
    return read_records(directory / TRIALS_FILE, TrialRecord, what="a trial")


def _no_recommendation(directory: Path) -> BadInput:
    if not directory.is_dir():
        return BadInput(
            f"{directory} is not a directory.", "Give the directory of a run, such as runs/MODEL-TIME."
        )
    trials = read_trials(directory)
    if not trials and not (directory / RUN_FILE).is_file():
        return BadInput(
            f"{directory} holds no finished run: there is no {RECOMMENDATION_FILE} in it.",
            "Give the directory that optimize named as its output.",
        )
    return BadInput(
        f"The run in {directory} has not ended: {len(trials)} trial{'' if len(trials) == 1 else 's'}, "
        "no recommendation.",
        f"Finish it with optimize --resume {shlex.quote(str(directory))}",
    )


def append_line(path: Path, line: str) -> None:
    """Append one line and wait until it is on the disk; a last line cut short by a crash is dropped first.

    Raises OSError with the name of `path`. After a failure, the next call drops the incomplete line.
    """
    with naming(path), path.open("ab+") as file:
        end = file.tell()
        whole = _end_of_last_line(file, end)
        if whole < end:
            file.truncate(whole)
        file.write(line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _end_of_last_line(file: BinaryIO, end: int) -> int:
    """Return the position behind the last line break among the first `end` bytes, 0 if there is none."""
    position = end
    while position > 0:
        start = max(0, position - 65536)
        file.seek(start)
        found = file.read(position - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        position = start
    return 0


def whole_lines(path: Path) -> list[str]:
    """Return the complete lines of a file; a last one without a line break was cut short and is left out.

    Raises OSError, and UnicodeDecodeError if it is not UTF-8.
    """
    try:
        return [line.decode() for line in path.read_bytes().split(b"\n")[:-1]]
    except FileNotFoundError:
        return []


def read_records(path: Path, kind: type[AnyRecord], *, what: str) -> tuple[AnyRecord, ...]:
    """Return the records of a file, one per line, in order; none if there is no such file.

    `what` names one of them in messages. Raises BadInput if the file cannot be read, or a line is not a record.
    """
    try:
        lines = whole_lines(path)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.", "Check its permissions.") from error
    except UnicodeDecodeError as error:
        raise BadInput(
            f"{path} cannot be read: {error}.", "It was damaged or replaced; run optimize again."
        ) from error
    records: list[AnyRecord] = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(kind.model_validate_json(line))
        except ValidationError as error:
            raise BadInput(
                f"Line {number} of {path} is not {what}: {first_problem(error)}.",
                "It was changed or written by another version; run optimize again.",
            ) from error
    return tuple(records)


PREDICTIONS_FILE = "predictions.jsonl"

Figure = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class PredictedRecord(Record):
    """The best prediction after all trials for a batch size and instance count, or for answer or default."""

    schema_version: Literal[1] = 1
    config: ConfigRecord
    rate_per_s: Figure = Field(description="The predicted capacity; 0: no rate meets the SLO.")
    curve: tuple[tuple[Figure, Figure], ...] = Field(
        default=(),
        description="Rates in requests per second and ms at the first limit's quantile, of the answer and the "
        "default.",
    )


def write_predictions(directory: Path, records: Iterable[PredictedRecord]) -> None:
    """Write the predictions of a run, instead of those that it had before it was resumed."""
    lines = [record.model_dump_json() + "\n" for record in records]
    write_atomically(directory / PREDICTIONS_FILE, "".join(lines))


SPEEDS_FILE = "machine_speed.jsonl"


class SpeedsRecord(Record):
    """The machine's speeds in one load run whose executions could be replayed."""

    schema_version: Literal[1] = 1
    began_unix_s: float
    speeds: tuple[float, ...] = Field(
        description="Mean speed in each second of the run; 1 is usual for the machine and this configuration."
    )
