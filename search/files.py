"""Files of lines that survive a crash: appended line by line, read without a last half line."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def append_line(path: Path, line: str) -> None:
    """Append one line and wait until it is on the disk; a last line cut short by a crash is dropped first."""
    with path.open("ab+") as file:
        end = file.tell()
        whole = _end_of_last_line(file, end)
        if whole < end:
            file.truncate(whole)
        file.write(line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _end_of_last_line(file: BinaryIO, end: int) -> int:
    """The position behind the last line break among the first `end` bytes, 0 where there is none."""
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
    """The complete lines of a file; a last one without a line break was cut short and is left out."""
    if not path.exists():
        return
    with path.open() as file:
        for line in file:
            if line.endswith("\n"):
                yield line.rstrip("\n")
