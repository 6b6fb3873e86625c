"""The thresholds of closeness to fp32: `--accuracy strict|standard|off`, each figure open to change."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Literal, get_args

from loadgen.errors import BadInput
from optimizer.precision.names import PRECISIONS, Precision

Level = Literal["strict", "standard", "off"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """The least SQNR, cosine and top-1 agreement, and the largest relative error; None: not checked."""

    sqnr_db: float | None = None
    cosine: float | None = None
    top1: float | None = None
    max_error: float | None = None


_STRICT: dict[Precision, Thresholds] = {
    "fp32": Thresholds(sqnr_db=60.0, top1=0.999),
    "tf32": Thresholds(sqnr_db=50.0, top1=0.999),
    "fp16": Thresholds(sqnr_db=40.0, cosine=0.9999, top1=0.995),
    "bf16": Thresholds(sqnr_db=30.0, cosine=0.9995, top1=0.995),
    "int8": Thresholds(sqnr_db=22.0, cosine=0.997, top1=0.99),
    "fp8": Thresholds(sqnr_db=22.0, cosine=0.997, top1=0.99),
}
_STANDARD: dict[Precision, Thresholds] = {
    **_STRICT,
    "fp16": Thresholds(sqnr_db=30.0, cosine=0.999, top1=0.99),
    "bf16": Thresholds(sqnr_db=25.0, cosine=0.999, top1=0.99),
    "int8": Thresholds(sqnr_db=15.0, cosine=0.99, top1=0.97),
    "fp8": Thresholds(sqnr_db=15.0, cosine=0.99, top1=0.97),
}
_BY_LEVEL: dict[Level, dict[Precision, Thresholds]] = {
    "strict": _STRICT,
    "standard": _STANDARD,
    "off": dict.fromkeys(PRECISIONS, Thresholds()),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyRule:
    """The rule that `--accuracy` sets. Even `off` lets no NaN and no infinite value pass."""

    level: Level = "strict"
    changes: tuple[tuple[str, float], ...] = ()

    def thresholds(self, precision: Precision) -> Thresholds:
        """Return the thresholds of one precision, with the changes that were asked for."""
        return replace(_BY_LEVEL[self.level][precision], **dict(self.changes))


def accuracy_rule(text: str) -> AccuracyRule:
    """Return the rule of a text: a level and changes, as in `standard,sqnr_db=28,top1=0.98`.

    The level is `strict`, `standard` or `off`. A change holds for every precision. Raises BadInput.
    """
    first, *changes = (part.strip() for part in text.split(","))
    levels: tuple[Level, ...] = get_args(Level)
    level = next((level for level in levels if level == first), None)
    if level is None:
        raise BadInput(f"--accuracy {text}: {first!r} is not a level.", f"Begin with one of {', '.join(levels)}.")
    return AccuracyRule(level=level, changes=tuple(_change(text, change) for change in changes))


def _change(text: str, change: str) -> tuple[str, float]:
    names = [field.name for field in fields(Thresholds)]
    name, _, number = change.partition("=")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if name not in names or not math.isfinite(value):
        raise BadInput(
            f"--accuracy {text}: {change!r} changes no threshold.",
            f"Write NAME=NUMBER with one of {', '.join(names)}, such as sqnr_db=30.",
        )
    return name, value
