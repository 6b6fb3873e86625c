"""Durations, rates and sizes as people write them on a command line."""

from __future__ import annotations

import math
import re

from loadgen.user_errors import BadInput

_DURATION = re.compile(r"\s*([-+]?[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*([a-zA-Zµ]*)\s*")
_MS_PER_UNIT = {"us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3, "m": 60e3, "min": 60e3, "h": 3600e3}


def duration_ms(text: str, *, option: str, default_unit: str | None = None) -> tuple[float, bool]:
    """The duration in ms, and whether the unit was assumed.

    A number without a unit takes `default_unit`. Raises BadInput for anything that is not a positive,
    finite duration.
    """
    match = _DURATION.fullmatch(text)
    unit = match.group(2) if match else ""
    assumed = match is not None and not unit
    if assumed and default_unit is not None:
        unit = default_unit
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
    return value, assumed
