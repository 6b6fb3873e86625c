"""The sources for `--model`: an ONNX file, a PyTorch ExportedProgram (`.pt2`), or a factory of a PyTorch model."""

from __future__ import annotations

import re
from pathlib import Path

from loadgen.errors import BadInput
from loadgen.options.declare import is_file

FACTORY = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"
"""The form of a factory: `package.module:callable`."""


def source_from_text(text: str) -> str | Path:
    """Return a factory as it is written, any other text as an absolute path.

    A text in the form of a factory is a path if that file exists. Raises BadInput for a text that can be neither.
    """
    if "\0" in text:
        raise BadInput(f"--model {text} holds a NUL, which no path does.", "Check the path.")
    if re.fullmatch(FACTORY, text) and not is_file(Path(text)):
        return text
    return Path(text).absolute()


def saved_source(text: str) -> str | Path:
    """Return a source as it was written to `run.json`: a factory, or an absolute path."""
    return text if re.fullmatch(FACTORY, text) else Path(text)


def source_beside(folder: Path, text: str) -> str:
    """Return the value for `--model` of a path relative to `folder`; a factory stays as it is."""
    beside = folder / text
    return text if re.fullmatch(FACTORY, text) and not is_file(beside) else str(beside)


def label_of(source: str | Path) -> str:
    """Return the name of the source for users: its file's name, or the factory."""
    return source if isinstance(source, str) else source.name


def stem_of(source: str | Path) -> str:
    """Return a short name for files made of the source."""
    return source.rpartition(":")[2] if isinstance(source, str) else source.stem


def needs_export(source: str | Path) -> bool:
    """True if the source is a PyTorch model (a factory or a `.pt2`), not an ONNX file."""
    return isinstance(source, str) or source.suffix == ".pt2"


def repository_from_text(text: str) -> Path:
    """Return the folder of a repository as an absolute path. Raises BadInput."""
    if not text:
        raise BadInput("--repository is empty.", "Give the folder of your models, or . for the current one.")
    return Path(text).absolute()
