"""The sources for `--model`: an ONNX file, a PyTorch ExportedProgram (`.pt2`), or a factory of a PyTorch model."""

from __future__ import annotations

import re
from collections.abc import Iterable
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


_VARIED = re.compile(
    r"(parameters\.[\w.-]+|optimization(?:\.\w+)+|dynamic_batching\.preferred_batch_size"
    r"|instance_group\.(?:0|[1-9][0-9]*)\.(?:count|kind))"
    r"=([\w./+-]+(?:,[\w./+-]+)*)"
)


def repository_from_text(text: str) -> Path:
    """Return the folder of a repository as an absolute path. Raises BadInput."""
    if not text:
        raise BadInput("--repository is empty.", "Give the folder of your models, or . for the current one.")
    return Path(text).absolute()


def vary_from_texts(texts: Iterable[str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return texts such as `parameters.KEY=V1,V2` as pairs of a field's path and its values. Raises BadInput."""
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        match = _VARIED.fullmatch(text)
        if match is None or match[1] in found:
            why = "varies what another --vary varies" if match else "names nothing to vary, with its values"
            raise BadInput(
                f"--vary {text!r} {why}.",
                "Write parameters.KEY=V1,V2 or optimization.FIELD=V1,V2, or vary "
                "dynamic_batching.preferred_batch_size, instance_group.1.count or instance_group.0.kind.",
            )
        found[match[1]] = tuple(dict.fromkeys(match[2].split(",")))
    return tuple(found.items())


def names_from_text(text: str) -> tuple[str, ...]:
    """Return the names of models in a text such as `a,b`."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",")))
