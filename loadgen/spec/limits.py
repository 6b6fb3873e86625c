"""Latency limits, those of streams, and all limits that a load test is judged by."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

Kind = Literal["latency", "errors", "ttft", "tpot", "attainment"]
"""What a limit is about: a latency, the share of failures, a time of a stream, or the share of good streams."""

QUANTILES = {"p99": 0.99, "p999": 0.999, "p95": 0.95, "p90": 0.9, "p50": 0.5}
"""The latency limits that the command line knows. The limit that comes first here is the first one of a run."""


def quantile_name(quantile: float) -> str:
    """Return `p99` for 0.99, `p99.9` for 0.999."""
    return f"p{100 * quantile:g}"


def quantile_option(quantile: float) -> str:
    """Return the name as options, metrics and alerts spell it: `p99` for 0.99, `p999` for 0.999."""
    return quantile_name(quantile).replace(".", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Colocated:
    """Another model of the same server, which gets a load of its own meanwhile: `rate_per_s` requests/s."""

    model: str
    rate_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyLimit:
    """At least `quantile` of all requests are to be answered within `limit_ms`, counted from their due time.

    Those of the `colocated` model, if there is one. Raises ValueError for a limit that is not above 0 and finite,
    or a quantile that is not between 0 and 1.
    """

    limit_ms: float
    quantile: float = 0.99
    colocated: Colocated | None = None

    def __post_init__(self) -> None:
        if not 0 < self.limit_ms < math.inf or not 0 < self.quantile < 1:
            raise ValueError(
                f"limit_ms {self.limit_ms} must be above 0, and quantile {self.quantile} between 0 and 1"
            )

    @property
    def limit_ns(self) -> int:
        """The limit in ns."""
        return round(self.limit_ms * 1e6)

    @property
    def allowed(self) -> float:
        """The share of requests that may be slower."""
        return 1.0 - self.quantile

    @property
    def limit_s(self) -> float:
        """The limit in seconds."""
        return self.limit_ms / 1e3

    @property
    def name(self) -> str:
        """`p99`, `p99.9`."""
        return quantile_name(self.quantile)

    @property
    def option(self) -> str:
        """`--p99=50ms`, as `loadtest` and `optimize` take it."""
        return f"--{quantile_option(self.quantile)}={self.limit_ms:g}ms"

    @property
    def text(self) -> str:
        """`p99 <= 50 ms`, `p99 of other <= 50 ms`."""
        return f"{self.of} <= {self.limit_ms:g} ms"

    @property
    def kind(self) -> Kind:
        """What a check of it is called."""
        return "latency"

    @property
    def over(self) -> str:
        """`took over 50 ms`: what a request over the limit did."""
        return f"took over {self.limit_ms:g} ms"

    @property
    def steady_after_ms(self) -> float:
        """The time scale of the load: a run is steady after about three of it."""
        return self.limit_ms

    @property
    def within(self) -> str:
        """`p99 within 50 ms`, `p99 of other within 20 ms at 900/s`."""
        at = "" if self.colocated is None else f" at {self.colocated.rate_per_s:g}/s"
        return f"{self.of} within {self.limit_ms:g} ms{at}"

    @property
    def model(self) -> str | None:
        """The name of the colocated model."""
        return None if self.colocated is None else self.colocated.model

    @property
    def of(self) -> str:
        """`p99`, `p99 of other`."""
        return self.name if self.model is None else f"{self.name} of {self.model}"

    def rate_per_s(self, rate_per_s: float) -> float:
        """Return the rate of the requests that it is about, if the model itself gets `rate_per_s`."""
        return rate_per_s if self.colocated is None else self.colocated.rate_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """All limits of a load test. `max_error_ratio` None: failures count against the latency limits only."""

    latency: tuple[LatencyLimit, ...] = ()
    max_error_ratio: float | None = None
    confidence: float = 0.95

    def __bool__(self) -> bool:
        return bool(self.latency) or self.max_error_ratio is not None

    @property
    def strictest_ms(self) -> float | None:
        """The limit of the highest quantile: a backlog of three such limits, and rising, is an overload."""
        return max(self.latency, key=lambda limit: limit.quantile).steady_after_ms if self.latency else None


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
