"""Compute how the load was shared between the addresses of a name, and what each of them took."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_BINS_PER_E = 100  # each is 1 % wide
_FAILED_BIN = 1 << 20
_MIN_REQUESTS = 100
_FACTOR = 1.5

Histogram = list[tuple[int, int]]
"""Pairs of a bin and its count. Bin b ends at e^(b/100) ns, where the next begins; one is of failures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressUse:
    """The part of a run that one address took. `latency_p99_ms`: to 1 %, failures last; None: a failure."""

    address: str
    requests: int
    failures: int
    latency_p99_ms: float | None


def histograms_of(
    latency_ns: NDArray[np.int64], failed: NDArray[np.bool_], places: bytearray, names: Sequence[str]
) -> dict[str, Histogram]:
    """Return a histogram for each address; request r went to address `places[r] - 1`, to none if that is -1."""
    bins = np.ceil(_BINS_PER_E * np.log(np.maximum(1, latency_ns))).astype(np.int64)
    bins[failed] = _FAILED_BIN
    place = np.frombuffer(places, np.uint8, len(bins))
    found = {}
    for number, name in enumerate(names, 1):
        values, counts = np.unique(bins[place == number], return_counts=True)
        found[name] = list(zip(values.tolist(), counts.tolist(), strict=True))
    return found


def uses_of(shards: Iterable[Mapping[str, Histogram]]) -> tuple[AddressUse, ...]:
    """Combine the histograms of several load processes."""
    merged: dict[str, Counter[int]] = {}
    for shard in shards:
        for name, histogram in shard.items():
            merged.setdefault(name, Counter()).update(dict(histogram))
    return tuple(
        AddressUse(address=name, requests=bins.total(), failures=bins[_FAILED_BIN], latency_p99_ms=_p99_ms(bins))
        for name, bins in merged.items()
    )


def _p99_ms(bins: Counter[int]) -> float | None:
    left = math.ceil(0.99 * bins.total())
    for number in sorted(bins):
        left -= bins[number]
        if left <= 0:
            return None if number == _FAILED_BIN else math.exp(number / _BINS_PER_E) / 1e6
    return None


def address_remarks(uses: Sequence[AddressUse]) -> tuple[str, ...]:
    """Return a remark for users if the addresses differ in their share, their failures or their p99."""
    if len(uses) < 2 or not _differ(uses):
        return ()
    total = sum(use.requests for use in uses)
    each = "; ".join(_in_words(use, total) for use in uses)
    return (f"the addresses of the name differ: {each}",)


def _differ(uses: Sequence[AddressUse]) -> bool:
    """True if p99, which counts failures last, or the shares differ by more than chance; not of few requests."""
    known = [use for use in uses if use.requests >= _MIN_REQUESTS]
    p99 = [math.inf if use.latency_p99_ms is None else use.latency_p99_ms for use in known]
    shares = [use.requests for use in uses]
    uneven = sum(shares) >= _MIN_REQUESTS and max(shares) > _FACTOR**2 * min(shares)
    return uneven or (bool(p99) and max(p99) > _FACTOR * min(p99))


def _in_words(use: AddressUse, total: int) -> str:
    if not use.requests:
        return f"{use.address} took no request"
    p99 = "its failures" if use.latency_p99_ms is None else f"{use.latency_p99_ms:.3g} ms"
    failures = f", {use.failures:,} failed" if use.failures else ""
    return f"{use.address} took {use.requests / max(1, total):.0%}, p99 {p99}{failures}"
