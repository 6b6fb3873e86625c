"""Files that survive a crash: written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


DRAFT = ".tritune-draft"
"""How the name of a file ends that is being written."""


def remove_drafts(folder: Path) -> None:
    """Remove what a process that was killed had half written in a folder that no other process writes to."""
    for draft in folder.glob(f".*{DRAFT}"):
        with contextlib.suppress(OSError):
            draft.unlink()


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` by `text` in one step; a reader sees the old file or the new one, never half of it.

    Raises OSError with the name of `path`.
    """
    with naming(path):
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=DRAFT)
        try:
            # Halves of characters, as file names may have them, are written as JSON spells them.
            with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).chmod(0o644)
            Path(temporary).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):  # the first error says more
                Path(temporary).unlink(missing_ok=True)
            raise


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """An OSError of the block names the file that people know; those of `write` and `fsync` name none."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise
