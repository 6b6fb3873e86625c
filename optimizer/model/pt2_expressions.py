"""Check the size expressions in a `.pt2` before PyTorch opens it: SymPy evaluates them, as Python would."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

from optimizer.errors import ExportFailed

_SYMBOL = re.compile(r"Symbol\('[A-Za-z]{1,3}\d+'(?:, [a-z]+=(?:True|False))*\)")
"""A size as PyTorch writes it: Symbol('s31', positive=True, integer=True)."""

_ARITHMETIC = re.compile(r"[A-Za-z0-9_\s+\-*/%(),.<>=!&|~]*")
_NAME = re.compile(r"[A-Za-z_]\w*")
_KNOWN = re.compile(r"[a-z]{1,3}\d+|[A-Z][A-Za-z]*|oo|zoo|nan")
"""Symbols (s0, u1), classes of SymPy and PyTorch (Max, FloorDiv), infinities; never a function of Python."""


def check_expressions(path: Path) -> None:
    """Check every expression in the archive. Raises ExportFailed.

    A file that is no archive is left to PyTorch. Files that `torch.export.save` writes always pass.
    """
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if not name.endswith(".json"):
                continue
            for expression in _expressions(json.loads(archive.read(name))):
                if not is_arithmetic(expression):
                    raise ExportFailed(
                        f"{path}: {expression[:80]!r} in it is not arithmetic on sizes.",
                        "Do not use this file unless you trust it.",
                    )


def is_arithmetic(expression: str) -> bool:
    """True if the text holds only numbers, operators, symbols for sizes, and functions of them."""
    expression = _SYMBOL.sub("s0", expression)
    return (
        _ARITHMETIC.fullmatch(expression) is not None
        and re.search(r"\.\s*[A-Za-z_]", expression) is None
        and all(
            _KNOWN.fullmatch(name) for name in _NAME.findall(re.sub(r"\d[\d.]*(?:e[+-]?\d+)?", "0", expression))
        )
    )


def _expressions(document: object) -> Iterator[str]:
    """Yield every text under a key that PyTorch parses as an expression."""
    if isinstance(document, dict):
        for key, value in document.items():
            if key == "expr_str" and isinstance(value, str):
                yield value
            yield from _expressions(value)
    elif isinstance(document, list):
        for value in document:
            yield from _expressions(value)
