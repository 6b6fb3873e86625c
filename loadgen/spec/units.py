"""Durations, rates and sizes as people write them on a command line."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable

from loadgen.errors import BadInput

_DURATION = re.compile(r"\s*([-+]?[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*([a-zA-Zµ]*)\s*")
_SIZE = re.compile(r"0*[1-9][0-9]{0,17}")
"""Sizes that 64 bits hold. Python also takes other scripts' digits, and refuses to read very long numbers."""
_SHARE = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*%\s*")
_MEMORY = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*([KMGT]i?B)\s*", re.IGNORECASE)
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}
_MS_PER_UNIT = {"us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3, "m": 60e3, "min": 60e3, "h": 3600e3}


def duration_ms(
    text: str, *, option: str, default_unit: str = "", note: Callable[[str], object] = lambda _: None
) -> float:
    """Return the duration in ms; a bare number takes `default_unit`, and `note` is told so.

    Raises BadInput for anything that is not a positive, finite duration.
    """
    match = _DURATION.fullmatch(text)
    unit = (match.group(2) or default_unit) if match else ""
    if match is None or unit not in _MS_PER_UNIT:
        raise BadInput(
            f"{option} {text!r} is not a duration.",
            f"Give a number with a unit, one of {', '.join(_MS_PER_UNIT)}: {option} 50ms",
        )
    value = float(match.group(1)) * _MS_PER_UNIT[unit]
    if not 0 < value < math.inf:
        raise BadInput(
            f"{option} {text} is not above zero.", f"Give a positive duration, for example {option} 50ms"
        )
    if not match.group(2):
        note(f"{option} {text} has no unit: taken as {float(match.group(1)):g} {default_unit}.")
    return value


def shapes_from_texts(texts: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Return `NAME:d1,d2` (or `NAME:d1xd2`) as the sizes of each name, which may hold colons. Raises BadInput."""
    shapes = {}
    for text in texts:
        name, _, sizes = text.rpartition(":")
        numbers = re.split(r"[,x]", sizes)
        if not name or not all(_SIZE.fullmatch(number.strip()) for number in numbers):
            raise BadInput(
                f"--shape {text} does not name an input and its sizes.",
                "Write NAME:D1,D2 with positive sizes, without the batch: --shape input_ids:128",
            )
        shapes[name] = tuple(int(number) for number in numbers)
    return shapes


def share_from_text(text: str, *, option: str, usual: str = "0.1%") -> float:
    """`0.1%` as 0.001. The sign is asked for, because 0.1 alone could mean two things.

    Raises BadInput, which names the `usual` one.
    """
    match = _SHARE.fullmatch(text)
    if match is None or not 0 <= float(match.group(1)) < 100:
        raise BadInput(
            f"{option} {text!r} is not a percentage.", f"Give 0% or more and less than 100%: {option} {usual}"
        )
    return float(match.group(1)) / 100


def memory_bytes(text: str, *, option: str) -> int:
    """Return `8GiB` as bytes; `GB` are thousands. Raises BadInput for anything else, and for nothing."""
    match = _MEMORY.fullmatch(text)
    size = 0.0
    if match is not None:
        unit = match.group(2).lower()
        size = float(match.group(1)) * (1024 if "i" in unit else 1000) ** _POWERS[unit[0]]
    if size < 1:
        raise BadInput(
            f"{option} {text!r} is not an amount of memory.", f"Give a number with a unit: {option} 8GiB"
        )
    return int(size)
