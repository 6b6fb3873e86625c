"""The manifest of a bundle: hashes of its files, which distinguish an unchanged bundle from any other folder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from model_repo.repository.kept_files import open_kept, read_kept

MANIFEST_FILE = "manifest.json"


class Manifest(BaseModel):
    """`manifest.json`: every other file of the bundle, and its SHA-256."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = 1
    files: dict[str, Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]] = Field(
        description="Path in the bundle, with `/` -> SHA-256."
    )


def write_manifest(folder: Path) -> None:
    """Write the manifest of all files in `folder`."""
    hashes: dict[int, str] = {}  # by inode: both repositories share one copy of a large model
    files: dict[str, str] = {}
    for name in sorted(_names(folder)):
        inode = (folder / name).lstat().st_ino
        if inode not in hashes:
            hashes[inode] = _sha256(folder, name)
        files[name] = hashes[inode]
    text = Manifest(files=files).model_dump_json(indent=2) + "\n"
    (folder / MANIFEST_FILE).write_text(text, encoding="utf-8")


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest in `folder`; None if there is none that can be read."""
    try:
        return Manifest.model_validate_json(read_kept(folder, MANIFEST_FILE))
    except (OSError, ValidationError):
        return None


def first_foreign(folder: Path, manifest: Manifest) -> str | None:
    """Return the first difference from the manifest, an unlisted path or a changed file; None if there is none.

    A file of the bundle that is missing does not count: replacing the rest loses nothing.
    """
    for name in sorted(_names(folder)):
        if name == MANIFEST_FILE:
            continue
        if name not in manifest.files:
            return f"{name!r} is not of the bundle"
        try:
            if _sha256(folder, name) != manifest.files[name]:
                return f"{name!r} was changed"
        except OSError as error:
            return f"{name!r} cannot be read: {error.strerror}"
    return None


def remove_listed(folder: Path, manifest: Manifest) -> bool:
    """Delete the files in `folder` that the manifest lists, and empty folders; return True if nothing is left.

    Only names that are found in `folder` are deleted: a manifest may name files elsewhere.
    """
    for name in list(_names(folder)):
        if name == MANIFEST_FILE or name in manifest.files:
            with suppress(OSError):
                (folder / name).unlink()
    for parent, _, _ in os.walk(folder, topdown=False):
        with suppress(OSError):
            Path(parent).rmdir()
    return not folder.exists()


def _names(folder: Path) -> Iterator[str]:
    """Yield the relative paths of everything below `folder` except filled folders: files, links, empty folders."""
    for parent, folders, files in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]  # noqa: PTH114, PTH118
        empty = parent != str(folder) and not folders and not files
        for name in (*files, *links, *(["."] if empty else [])):
            yield os.path.relpath(os.path.join(parent, name), folder)  # noqa: PTH118


def _sha256(folder: Path, name: str) -> str:
    with open_kept(folder, name) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
