"""The manifest of a bundle: hashes of its files, which distinguish an unchanged bundle from any other folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from loadgen.files import sha256_of

MANIFEST_FILE = "manifest.json"


class Manifest(BaseModel):
    """`manifest.json`: every other file of the bundle, and its SHA-256."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = 1
    files: dict[str, str] = Field(description="Path in the bundle, with `/` -> SHA-256.")


def write_manifest(folder: Path) -> None:
    """Write the manifest of all files in `folder`."""
    hashes: dict[int, str] = {}  # by inode: both repositories share one copy of a large model
    files: dict[str, str] = {}
    for name in sorted(_names(folder)):
        inode = (folder / name).stat().st_ino
        if inode not in hashes:
            hashes[inode] = sha256_of(folder / name)
        files[name] = hashes[inode]
    text = Manifest(files=files).model_dump_json(indent=2) + "\n"
    (folder / MANIFEST_FILE).write_text(text, encoding="utf-8")


def first_foreign(folder: Path) -> str | None:
    """Return what distinguishes `folder` from an unchanged bundle: no manifest, an unlisted or a changed file.

    None if it is one. Files of the bundle that are missing, and empty folders, do not count: no work is in them.
    """
    try:
        manifest = Manifest.model_validate_json((folder / MANIFEST_FILE).read_bytes())
    except (OSError, ValidationError):
        return f"it is not empty and not a bundle (it has no valid {MANIFEST_FILE})"
    for name in sorted(_names(folder)):
        if name == MANIFEST_FILE:
            continue
        if name not in manifest.files:
            return f"{name!r} is not of the bundle"
        try:
            if sha256_of(folder / name) != manifest.files[name]:
                return f"{name!r} was changed"
        except OSError as error:
            return f"{name!r} cannot be read: {error.strerror}"
    return None


def _names(folder: Path) -> Iterator[str]:
    """Yield the relative paths of all files and links below `folder`."""
    for path in folder.rglob("*"):
        if path.is_symlink() or not path.is_dir():
            yield path.relative_to(folder).as_posix()
