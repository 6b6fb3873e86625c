"""What `--model` may name: an ONNX file, a PyTorch ExportedProgram (`.pt2`), or a factory of a PyTorch model."""

from __future__ import annotations

import re
from pathlib import Path

from optimizer.errors import BadInput

FACTORY = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"
"""`package.module:callable`"""


def is_file(path: Path) -> bool:
    """True for a regular file that can be reached; a path that is too long, say, leads to none."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return False


def source_from_text(text: str) -> str | Path:
    """A factory as it is written, anything else as an absolute path; a file that looks like one is a file.

    Raises BadInput for a text that can be neither.
    """
    if "\0" in text:
        raise BadInput(f"--model {text} holds a NUL, which no path does.", "Check the path.")
    if re.fullmatch(FACTORY, text) and not is_file(Path(text)):
        return text
    return Path(text).absolute()


def label_of(source: str | Path) -> str:
    """The source as people call it: its file's name, or the factory."""
    return source if isinstance(source, str) else source.name


def stem_of(source: str | Path) -> str:
    """A short name for files made of the source."""
    return source.rpartition(":")[2] if isinstance(source, str) else source.stem


def needs_export(source: str | Path) -> bool:
    """True if the source is not an ONNX file, but something of PyTorch."""
    return isinstance(source, str) or source.suffix == ".pt2"


def onnx_file(source: str | Path, folder: Path) -> Path:
    """The model as an ONNX file: the user's own, or an export into `folder`. Raises ExportFailed."""
    if isinstance(source, Path) and not needs_export(source):
        return source
    from optimizer.export import export_model

    return export_model(source, folder)
