"""Copies of models of the user's own repository, which nobody writes to: found, checked, and made."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from loadgen.errors import BadInput
from model_repo.repository.own_config import GROUPS
from model_repo.repository.own_model import (
    CONFIG_FILE,
    NOT_PLAIN,
    IncompleteConfig,
    own_files,
    own_versions,
    parse_own,
)

MAX_CONFIG_BYTES = 2**20
"""To parse a megabyte takes seconds."""


def model_folder(root: Path, name: str, *, why: str | None = None) -> Path:
    """Return the folder of a model in the user's repository. Raises BadInput if it has no version.

    `why`: such as `which ENSEMBLE calls`, None for the model that is tuned.
    """
    try:
        if own_versions(root / name):
            return root / name
        there = sorted(path.name for path in root.iterdir() if _is_model(path))
    except OSError as error:
        where = f"--repository {root}" if error.filename in (None, str(root)) else error.filename
        raise BadInput(f"{where} cannot be read: {error.strerror}.", "Check the path.") from error
    if (root / name).is_dir():
        raise BadInput(
            f"{root / name} has no version: Triton serves what is in a folder with a number, such as 1.",
            f"Put the model into {root / name / '1'}",
        )
    known = f"It holds {', '.join(there)}." if there else "No folder in it has a version, such as NAME/1."
    which = name if why is None else f"{name}, {why}"
    raise BadInput(f"--repository {root} has no model {which}.", known)


def _is_model(folder: Path) -> bool:
    try:
        return bool(own_versions(folder))
    except OSError:  # another's, which need not be readable
        return False


def config_file(folder: Path, name: str | None) -> Path:
    """Return a model's `configs/NAME.pbtxt`, or `config.pbtxt` without that, which need not be there either.

    Raises BadInput for a model with others alone, of which Triton would take none.
    """
    named = {path.stem: path for path in sorted(folder.glob("configs/*.pbtxt"))}
    if named and name not in named and not (folder / CONFIG_FILE).exists():
        missing = "" if name is None else f"configs/{name}.pbtxt and no "
        raise BadInput(
            f"{folder} has no {missing}{CONFIG_FILE}, but in its folder configs {', '.join(named)}.",
            f"Choose one by --model-config-name {min(named)}; an empty {CONFIG_FILE} is completed by Triton.",
        )
    return named.get(name or "", folder / CONFIG_FILE)


def check_config_name(root: Path, name: str) -> None:
    """Raise BadInput if no model of the repository has a configuration of this name."""
    known = {path.stem for path in root.glob("*/configs/*.pbtxt")}
    if name not in known:
        what = f"--model-config-name {name}: no model in {root} has configs/{name}.pbtxt."
        raise BadInput(
            what, f"It has {', '.join(sorted(known)) or 'none'}; without this option config.pbtxt is used."
        )


def named_beside(root: Path, reason: str, copied: Collection[str]) -> str:
    """Return what is in the repository, is named by the reason why a model does not load, and was not copied."""
    there = sorted(path for path in root.iterdir() if path.name not in copied)
    return ", ".join(path.name for path in there if re.search(rf"\b{re.escape(path.stem)}\b", reason))


@contextmanager
def usable(config: Path, *, dry: bool) -> Iterator[None]:
    """Turn an OSError or ValueError about a model of the user's with this configuration into BadInput.

    `dry`: no server completes it.
    """
    try:
        yield
    except OSError as error:
        raise BadInput(
            f"{error.filename or config.parent} cannot be read: {error.strerror}.",
            "Put what it leads to into the repository, or allow it with --follow-links."
            if error.errno == errno.EXDEV
            else "Check it, its permissions, and where links lead.",
        ) from error
    except ValueError as error:
        what = config if config.exists() else f"{config.parent}, without a {config.name},"
        raise BadInput(
            f"{what} cannot be used: {error}.",
            "Leave --dry-run out: a server then completes it."
            if dry and isinstance(error, IncompleteConfig)
            else "Correct it, so that Triton loads the model.",
        ) from error


def check_kind(name: str, text: str, *, why: str | None = None) -> None:
    """Raise BadInput for a model that takes no single requests with one answer each. `why`: see `model_folder`."""
    message, kinds = parse_own(text), []
    if message.HasField("sequence_batching"):
        kinds.append("a sequence model, whose requests belong together")
    if message.model_transaction_policy.decoupled:
        kinds.append("decoupled, so that a request may get any number of answers")
    if why is not None and message.HasField("ensemble_scheduling"):
        kinds.append("an ensemble itself")
    if kinds:
        what = name if why is None else f"{name}, {why},"
        raise BadInput(
            f"{what} is {kinds[0]}: that is not tuned yet.",
            "Name a model that answers each request by itself, such as a member of it.",
        )


def check_words(name: str, text: str) -> None:
    """Raise BadInput for words of a model's that Triton's Python backend would hand to a shell."""
    message = parse_own(text, ("default_model_filename", GROUPS))
    words = [("the name", name), ("default_model_filename", message.default_model_filename)]
    words += [(f"the {GROUPS}", group.name) for group in message.instance_group]
    wrong = next(((what, word) for what, word in words if NOT_PLAIN.search(word)), None)
    if wrong is not None:
        raise BadInput(
            f"{name}: Triton's Python backend hands {wrong[0]} {wrong[1]!r} to a shell.",
            "Rename it, with letters, digits and _.+- alone.",
        )


def check_copy(folder: Path, target: Path, config: Path, root: Path | None = None) -> None:
    """Check that a model with this configuration can be read whole, and that a copy fits.

    `root`: no link may lead out of it. Raises OSError, ValueError and BadInput.
    """
    size = 0
    for _, path in own_files(folder, root):
        if not os.access(path, os.R_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        size += path.stat().st_size
    if config.exists() and config.stat().st_size > MAX_CONFIG_BYTES:
        raise ValueError(f"it has more than {MAX_CONFIG_BYTES:,} bytes")
    free = shutil.disk_usage(next(one for one in target.resolve().parents if one.exists())).free
    if size > free:
        raise BadInput(
            f"{folder} has {size / 2**30:.1f} GiB, which the run copies, and {free / 2**30:.1f} GiB are free.",
            "Free some space, or give a folder on another disk with --output.",
        )


def own_text(path: Path) -> str:
    """Return the configuration of a model, letter by letter; "" if it has none. Raises OSError and ValueError."""
    if path.exists() and not path.is_file():
        raise ValueError("it is no regular file")
    try:
        return path.read_bytes().decode() if path.exists() else ""
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8") from error
