"""Files of lines that survive a crash: appended line by line, read without a last half line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

from pydantic import ValidationError

from loadgen.errors import BadInput, first_problem
from loadgen.files import naming
from search.record import Record

AnyRecord = TypeVar("AnyRecord", bound=Record)


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


def whole_lines(path: Path) -> Iterator[str]:
    """Yield the complete lines of a file; a last one without a line break was cut short and is left out.

    Raises OSError, and UnicodeDecodeError if it is not UTF-8.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    *lines, _ = data.split(b"\n")
    for line in lines:
        yield line.decode("utf-8")


def read_records(path: Path, kind: type[AnyRecord], *, what: str) -> tuple[AnyRecord, ...]:
    """Return the records of a file, one per line, in order; none if there is no such file.

    `what` names one of them in messages. Raises BadInput if the file cannot be read, or a line is not a record.
    """
    records: list[AnyRecord] = []
    try:
        for line in whole_lines(path):
            records.append(kind.model_validate_json(line))  # noqa: PERF401 - the error names the line
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.", "Check its permissions.") from error
    except UnicodeDecodeError as error:
        raise BadInput(
            f"{path} cannot be read: {error}.", "It was damaged or replaced; run optimize again."
        ) from error
    except ValidationError as error:
        raise BadInput(
            f"Line {len(records) + 1} of {path} is not {what}: {first_problem(error)}.",
            "It was changed or written by another version; run optimize again.",
        ) from error
    return tuple(records)
