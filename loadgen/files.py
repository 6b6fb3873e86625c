"""Write files that survive a crash: whole or not at all."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from loadgen.processes import scratch_folder

DRAFT = ".tritune-draft"
"""The name of a file that is being written ends with this."""


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` by `text` in one step; a reader sees the old file or the new one, never half of it.

    For a folder that no other process writes to: the next write of the file uses what a kill left. Raises OSError
    with the name of `path`.
    """
    draft = path.with_name(f".{path.name}{DRAFT}")
    with naming(path):
        try:
            # Lone surrogates, which file names may contain, are written as JSON escapes.
            with draft.open("w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except BaseException:
            with suppress(OSError):  # the first error matters more
                draft.unlink(missing_ok=True)
            raise


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file that appears under its name when the block ends; if the block fails, nothing remains.

    For large files, and for folders that several processes write to: the next one removes the remains of a kill.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder("copy", path.parent) as folder:
        draft = folder / "whole"
        with draft.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)


def copy_whole(source: Path, target: Path) -> None:
    """Copy a file, whole or not at all."""
    with source.open("rb") as file, whole_file(target) as copy:
        shutil.copyfileobj(file, copy, 1 << 20)


def sha256_of(path: Path, more: Mapping[str, Path] | None = None) -> str:
    """Return the hexadecimal SHA-256 of a file, followed by the names and contents of more. Raises OSError."""
    digest = hashlib.sha256()
    for name, part in (("", path), *sorted((more or {}).items())):
        digest.update(name.encode())
        with part.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()


def checksum(path: Path | None) -> str | None:
    """Return the SHA-256 of a file, or of a folder's files and their names; None for no path. Raises OSError."""
    if path is None:
        return None
    if not path.is_dir():
        return sha256_of(path)
    parts = (f"{part.name}\0{sha256_of(part)}\n" for part in path.iterdir() if part.is_file())
    return hashlib.sha256("".join(sorted(parts)).encode()).hexdigest()


def flush_folder(folder: Path) -> None:
    """Wait until every file below `folder` is on the disk: a file must not be empty after a rename shows it."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Put the name that users know into an OSError of the block; those of `write` and `fsync` have none."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise
