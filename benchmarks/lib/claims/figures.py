"""Compute one figure from rows, and format it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lib.bounds import lower_bound
from lib.claims.rows import ClaimFailed, Conditions, Row, select, value_at
from loadgen.records.formats import UNKNOWN, format_dollars, format_ms, format_percent, format_rate


def _only(values: Sequence[Any]) -> Any:
    if len(set(map(str, values))) != 1:
        raise ClaimFailed(
            f"{len(values)} values, {list(values)[:3]}, where one was expected\nAdd `take` or `where`."
        )
    return values[0]


def _bound(values: Sequence[Any]) -> float:
    """Return the upper bound of the share of false values, at 95 % (Clopper-Pearson, one-sided)."""
    return 1 - lower_bound(sum(map(bool, values)), len(values), confidence=0.95)


def _errors(values: Sequence[float]) -> list[float]:
    """Return |ln(ratio)| for ratios, in rising order."""
    return sorted(abs(math.log(value)) for value in values)


TAKES: Mapping[str, Callable[[Sequence[Any]], Any]] = {
    "only": _only,
    "count": len,
    "sum": sum,
    "mean": statistics.fmean,
    "median": statistics.median,
    "min": min,
    "max": max,
    "bound": _bound,
    "median_error": lambda values: statistics.median(_errors(values)),
    "ninth_error": lambda values: statistics.quantiles(_errors(values), n=10)[8],
}
OF_NOTHING = {"count": 0, "sum": 0}


def _knobs(value: Mapping[str, Any]) -> str:
    """Return batch x instances, and the delay and CUDA graphs if there are any."""
    delay_ms = value["max_queue_delay_us"] / 1000
    graphs = value.get("cuda_graphs") or value.get("cuda_graph_batch_sizes")
    words = (
        f"{value['max_batch_size']} x {value['instance_count']}",
        f"{delay_ms:g} ms" if delay_ms else "",
        "graphs" if graphs else "",
    )
    return ", ".join(filter(None, words))


FORMATS: Mapping[str, Callable[[Any], str]] = {
    "text": str,
    "count": lambda value: f"{value:,.0f}",
    "number": lambda value: f"{value:,.0f}",
    "decimal": lambda value: f"{value:,.1f}",
    "hundredths": lambda value: f"{value:,.2f}",
    "rate": lambda value: f"{format_rate(value)}/s",
    "percent": lambda value: f"{100 * value:.1f} %",
    "small_percent": format_percent,
    "ms": lambda value: f"{format_ms(value)} ms",
    "dollars": format_dollars,
    "seconds": lambda value: f"{value:,.0f} s",
    "knobs": _knobs,
}


@dataclass(frozen=True, slots=True)
class Figure:
    """How one figure follows from rows.

    `of`: a field, or the ratio of two. `take`: a name of `TAKES`. `shown_as`: a name of `FORMATS`.
    """

    of: str | None
    take: str
    shown_as: str
    where: Conditions

    def computed(self, rows: Sequence[Row]) -> Any:
        """Return the value; None if no row has the field and the figure is no count or sum."""
        chosen = select(rows, self.where)
        if self.of is None:
            return TAKES[self.take](chosen)
        values = [value for row in chosen if (value := value_at(row, self.of)) is not None]
        return TAKES[self.take](values) if values else OF_NOTHING.get(self.take)

    def text(self, rows: Sequence[Row]) -> str:
        """Return the figure as text; `-` if it is not known."""
        value = self.computed(rows)
        return UNKNOWN if value is None else FORMATS[self.shown_as](value)


def figure_text(declared: Mapping[str, Any] | float, rows: Sequence[Row]) -> str:
    """Return a declared figure of these rows as text; a number stands for itself.

    Raises ClaimFailed if a key, a `take` or a format is unknown, or if there are several values and no `take`.
    """
    return figure_of(declared).text(rows) if isinstance(declared, Mapping) else f"{declared:,}"


def figure_of(declared: Mapping[str, Any]) -> Figure:
    """Return a declared figure. Raises ClaimFailed if a key, a `take` or a format is unknown."""
    unknown = set(declared) - {"of", "take", "as", "where", "head"}
    figure = Figure(
        of=declared.get("of"),
        take=declared.get("take", "only"),
        shown_as=declared.get("as", "count" if declared.get("take") == "count" else "text"),
        where=declared.get("where", {}),
    )
    problems = (
        (unknown, f"{', '.join(sorted(unknown))}: no key of a figure\nUse of, take, as, where."),
        (figure.take not in TAKES, f"take = {figure.take!r}\nUse one of {', '.join(TAKES)}."),
        (figure.shown_as not in FORMATS, f"as = {figure.shown_as!r}\nUse one of {', '.join(FORMATS)}."),
        (figure.of is None and figure.take != "count", "a figure has no `of`\nOnly a count needs none."),
    )
    for wrong, message in problems:
        if wrong:
            raise ClaimFailed(message)
    return figure
