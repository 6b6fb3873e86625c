"""`--with-model`: other models of the repository, each under a load and limits of its own."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from loadgen.errors import BadInput
from loadgen.options.declare import is_file
from loadgen.printable import printable
from loadgen.spec.limits import QUANTILES, Colocated, LatencyLimit
from loadgen.spec.plan import MAX_RATE_PER_S
from loadgen.spec.units import duration_ms

EXAMPLE = "Write --with-model NAME:p99=20ms,rate=900, and input_data=FILE for real inputs."


@dataclass(frozen=True, slots=True, kw_only=True)
class WithModel:
    """Another model of the server: what it is sent meanwhile, and the limits that it has to keep."""

    name: str
    rate_per_s: float
    limits: tuple[LatencyLimit, ...]
    input_data: Path | None = None

    @property
    def text(self) -> str:
        """The option's value."""
        parts = [limit.option.removeprefix("--") for limit in self.limits] + [f"rate={self.rate_per_s:.15g}"]
        return f"{self.name}:{','.join(parts + ([f'input_data={self.input_data}'] if self.input_data else []))}"


def with_models_from_texts(texts: Iterable[str]) -> tuple[WithModel, ...]:
    """Return the models of `NAME:p99=20ms,rate=900`. Raises BadInput."""
    found = tuple(map(_with_model, texts))
    names = [one.name for one in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BadInput(f"--with-model names {twice} twice.", "Give all of its limits at once.")
    return found


def _with_model(text: str) -> WithModel:
    option = f"--with-model {printable(text)}"
    name, _, rest = text.partition(":")
    pairs = [part.partition("=")[::2] for part in rest.split(",")]
    given = dict(pairs)
    unknown = next((key for key in given if key not in (*QUANTILES, "rate", "input_data")), None)
    if not name or not rest or "/" in name or len(given) < len(pairs):
        raise BadInput(f"{option} is not a name and its settings.", EXAMPLE)
    if unknown is not None:
        raise BadInput(f"{option}: {printable(unknown) or 'nothing'} is no setting.", EXAMPLE)
    try:
        rate_per_s = float(given.get("rate", "nan"))
    except ValueError:
        rate_per_s = math.nan
    if not 0 < rate_per_s <= MAX_RATE_PER_S:
        raise BadInput(f"{option} has no rate of at most a million requests/s.", EXAMPLE)
    colocated = Colocated(model=name, rate_per_s=rate_per_s)
    limits = tuple(
        LatencyLimit(limit_ms=duration_ms(given[key], option=f"--{key}")[0], quantile=share, colocated=colocated)
        for key, share in QUANTILES.items()
        if key in given
    )
    if not limits:
        raise BadInput(f"{option} has no latency limit.", EXAMPLE)
    data = given.get("input_data")
    if data is not None and not is_file(Path(data)):
        raise BadInput(f"{option}: {printable(data)} is not a file.", "Check the path.")
    return WithModel(
        name=name, rate_per_s=rate_per_s, limits=limits, input_data=None if data is None else Path(data).absolute()
    )
