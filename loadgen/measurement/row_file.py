"""Append the rows of a run to files, and read them as a log of memory-mapped columns."""

from __future__ import annotations

import io
import mmap
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from loadgen.errors import BadInput, EnvironmentFailed
from loadgen.measurement.chunked_times import PART
from loadgen.measurement.request_log import ROW_BYTES, RequestLog, concatenate, no_rows

_DTYPES = {"scheduled_ns": "<i8", "sent_ns": "<i8", "done_ns": "<i8", "outcome": "|u1"}
_HEADER_BYTES = 128
_IN_MEMORY = ("tmpfs", "ramfs")


class RowFile:
    """Stores requests as they end, and returns all of them at any time within its `with` block.

    A file per column lies in `folder`, 25 bytes per request in all. The files have no names, so that the system
    removes them however this process ends; or they are kept as NumPy's `scheduled_ns.npy` and so on. Private
    memory does not grow with the run. A log stays readable after the block.
    """

    def __init__(self, folder: Path, *, keep: bool = False) -> None:
        self._folder = folder
        self._keep = keep
        self._files: dict[str, int] = {}
        self._n = 0
        self._last_due_ns = 0

    def __enter__(self) -> Self:
        for name in _DTYPES:
            self._files[name] = self._opened(name)
            _write(self._files[name], memoryview(_header(name, 0)), 0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            os.close(file)
        self._files = {}

    def add(self, log: RequestLog) -> None:
        """Add requests in the order of the schedule. Raises EnvironmentFailed on a full disk.

        Those that were due before the last ones of the file are sorted in.
        """
        if not len(log):
            return
        try:
            self._put(log, self._n)
            for name, file in self._files.items():
                _write(file, memoryview(_header(name, self._n + len(log))), 0)
        except OSError as error:
            raise EnvironmentFailed(
                f"{self._folder.absolute()}: {error.strerror}, after the times of {self._n:,} requests.",
                f"Free some space there, {ROW_BYTES} MB per million requests, or name a folder on another disk "
                "with --keep-log; then run again.",
            ) from error
        self._n += len(log)
        if log.scheduled_ns[0] < self._last_due_ns:
            self._sort_in(log)
        self._last_due_ns = max(self._last_due_ns, int(log.scheduled_ns[-1]))

    def _put(self, log: RequestLog, start: int) -> None:
        for name, file in self._files.items():
            column: NDArray[Any] = getattr(log, name)
            _write(file, column.data.cast("B"), _HEADER_BYTES + column.itemsize * start)

    def _sort_in(self, late: RequestLog) -> None:
        """Move the file's last rows, which are `late`, to their places: from the back, a part at a time."""
        whole, end = self.log(), self._n - len(late)
        while len(late):
            start = max(0, end - PART)
            first = int(np.searchsorted(late.scheduled_ns, whole.scheduled_ns[start])) if start else 0
            self._put(concatenate([whole.rows(start, end), late.rows(first, len(late))]), start + first)
            late, end = late.rows(0, first), start

    def log(self) -> RequestLog:
        """Return all requests so far."""
        if not self._n:
            return no_rows()
        return RequestLog(
            scheduled_ns=self._mapped("scheduled_ns"),
            sent_ns=self._mapped("sent_ns"),
            done_ns=self._mapped("done_ns"),
            outcome=self._mapped("outcome"),
        )

    def _opened(self, name: str) -> int:
        if not self._keep:
            with tempfile.TemporaryFile(dir=self._folder, buffering=0) as nameless:
                return os.dup(nameless.fileno())
        self._folder.mkdir(parents=True, exist_ok=True)
        return os.open(self._folder / f"{name}.npy", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)

    def _mapped(self, name: str) -> NDArray[Any]:
        dtype = np.dtype(_DTYPES[name])
        pages = mmap.mmap(self._files[name], _HEADER_BYTES + dtype.itemsize * self._n, access=mmap.ACCESS_READ)
        return np.frombuffer(pages, dtype, self._n, _HEADER_BYTES)


def check_folder(folders: Sequence[Path], requests: float) -> Path:
    """Return the first of these folders on a disk with space for so many requests. Raises BadInput."""
    size = requests * ROW_BYTES
    problems = []
    for folder in folders:
        existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
        free = shutil.disk_usage(existing).free
        if not os.access(existing, os.W_OK):
            problems.append(f"{folder} cannot be written")
        elif _file_system(existing) in _IN_MEMORY:
            problems.append(f"{folder} is in memory")
        elif free < size:
            problems.append(f"{folder} has {free / 1e9:.3g} GB free")
        else:
            return folder
    raise BadInput(
        f"The times of {requests:,.0f} requests take {size / 1e9:.3g} GB on a disk, and {problems[0]}.",
        "Make room there, or name a folder on another disk with --keep-log.",
    )


def _file_system(folder: Path) -> str | None:
    """Return the kind of file system that a folder lies on; None if unknown."""
    device = folder.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    mounts = (line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return next((fields[fields.index("-") + 1] for fields in mounts if fields[2] == number), None)


def _header(name: str, n: int) -> bytes:
    """Return the NumPy file header of a column with n values."""
    text = io.BytesIO()
    about = {"descr": _DTYPES[name], "fortran_order": False, "shape": (n,)}
    np.lib.format.write_array_header_1_0(text, about)  # type: ignore[no-untyped-call]
    return text.getvalue()


def _write(file: int, data: memoryview, offset: int) -> None:
    while len(data):
        written = os.pwrite(file, data, offset)
        data, offset = data[written:], offset + written
