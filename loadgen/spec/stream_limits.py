"""Limits on the times of streams of tokens, and on the share of requests that keep all of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from loadgen.spec.limits import Kind, LatencyLimit, quantile_name, quantile_option

Measure = Literal["ttft", "tpot", "e2e"]
"""The time to the first token, per token after it, or of the whole reply."""

MEASURES: tuple[Measure, ...] = ("ttft", "tpot", "e2e")

_OVER = {"ttft": " to the first token", "tpot": " per token", "e2e": ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLimit(LatencyLimit):
    """A limit on one time of a stream; with `parts`, on how many requests keep all of these.

    Times then count in shares of the parts' limits, and `limit_ms` is the whole. `settle_ms` is the time of
    the longest reply if all limits are met: the load is steady after about three of it. None: `limit_ms`.
    """

    measure: Measure = "e2e"
    settle_ms: float | None = None
    parts: tuple[StreamLimit, ...] = ()

    @property
    def name(self) -> str:
        """`TTFT p95`."""
        return f"{self.measure.upper()} {quantile_name(self.quantile)}"

    @property
    def option(self) -> str:
        """`--ttft-p95=500ms`."""
        return f"--{self.measure}-{quantile_option(self.quantile)}={self.limit_ms:g}ms"

    @property
    def text(self) -> str:
        """`TTFT p95 <= 500 ms`, `good requests >= 95 %`."""
        if len(self.parts) > 1:
            return f"good requests >= {100 * self.quantile:g} %"
        return self.parts[0].text if self.parts else f"{self.name} <= {self.limit_ms:g} ms"

    @property
    def kind(self) -> Kind:
        """See `LatencyLimit`."""
        return "attainment" if self.parts else "latency" if self.measure == "e2e" else self.measure

    @property
    def over(self) -> str:
        """`took over 500 ms to the first token`, `were not good`."""
        return "were not good" if self.parts else f"took over {self.limit_ms:g} ms{_OVER[self.measure]}"

    @property
    def steady_after_ms(self) -> float:
        """See `LatencyLimit`."""
        return self.settle_ms or self.limit_ms


def settled_limits(limits: tuple[StreamLimit, ...], output_tokens: int) -> tuple[StreamLimit, ...]:
    """Return the limits with the time after which their load is steady.

    Empty if they do not bound the time of a whole reply: one on the first token, or per token, alone does not.
    """
    ttft_ms, tpot_ms, e2e_ms = (
        min((limit.limit_ms for limit in limits if limit.measure == measure), default=math.inf)
        for measure in MEASURES
    )
    settle_ms = min(e2e_ms, ttft_ms + tpot_ms * output_tokens)
    return tuple(replace(limit, settle_ms=settle_ms) for limit in limits if math.isfinite(settle_ms))


def all_of(parts: tuple[StreamLimit, ...], quantile: float) -> StreamLimit:
    """Return the limit that at least `quantile` of all requests keep all of these limits."""
    return StreamLimit(limit_ms=parts[0].steady_after_ms, quantile=quantile, parts=parts)
