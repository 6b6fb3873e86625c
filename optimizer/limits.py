"""The limits of the command line: latencies per quantile, and memory."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from loadgen.order import QUANTILES
from loadgen.units import noted_duration_ms
from optimizer.errors import BadInput
from search.records import LimitRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

FIRST = "p99"
"""The limit that figures are about first; where it is not given, the one of the highest quantile."""

_SIZE = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*([KMGT]i?B)\s*", re.IGNORECASE)
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}


def latency_limits(given: Mapping[str, str | None]) -> tuple[tuple[LimitRecord, ...], list[str]]:
    """The limits in `given` (`p99` -> `50ms`), the first one first, and notes on units that were assumed.

    Raises BadInput where there is none, and for one that another one implies: it would only cost confidence.
    """
    notes: list[str] = []
    limits: dict[str, LimitRecord] = {}
    for name, quantile in sorted(QUANTILES.items(), key=lambda item: (item[0] != FIRST, -item[1])):
        text = given.get(name)
        if text is None:
            continue
        limit_ms = noted_duration_ms(text, option=f"--{name}", default_unit="ms", note=notes.append)
        limits[name] = LimitRecord(limit_ms=limit_ms, quantile=quantile)
    if not limits:
        raise BadInput("No latency limit was given.", "Add --p99, for example --p99 50ms")
    _refuse_implied(limits)
    return tuple(limits.values()), notes


def _refuse_implied(limits: Mapping[str, LimitRecord]) -> None:
    for name, limit in limits.items():
        for other_name, other in limits.items():
            if limit.quantile < other.quantile and limit.limit_ms >= other.limit_ms:
                raise BadInput(
                    f"--{name} {limit.limit_ms:g}ms follows from --{other_name} {other.limit_ms:g}ms.",
                    f"Give --{name} a shorter duration, or leave it out.",
                )


def memory_bytes(text: str, *, option: str) -> int:
    """`8GiB` as bytes; `GB` are thousands. Raises BadInput for anything else, and for nothing."""
    match = _SIZE.fullmatch(text)
    size = 0.0
    if match is not None:
        unit = match.group(2).lower()
        size = float(match.group(1)) * (1024 if "i" in unit else 1000) ** _POWERS[unit[0]]
    if size < 1:
        raise BadInput(
            f"{option} {text!r} is not an amount of memory.", f"Give a number with a unit: {option} 8GiB"
        )
    return int(size)
