"""Latency laws that are known without a measurement: a fixed delay, and queues with one server.

Service times are discrete or exponential, arrivals Poisson. Latency is the sojourn: waiting plus service.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MEAN_MS = 2.0
"""Mean service time of both queues: their capacity is 500/s."""

FIXED_MS = 5.0
SHORT_MS, LONG_MS, LONG_SHARE = 1.0, 11.0, 0.1
STEP_MS = 0.01

Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """`draw(random, n)` returns n service times in ms; `latency_ms(rate_per_s, quantile)` is the exact quantile.

    `queues` False: every request is served at once, however many there are.
    """

    name: str
    draw: Callable[[np.random.Generator, int], Times]
    latency_ms: Callable[[float, float], float]
    queues: bool


def exponential_sojourn_ms(mean_ms: float, rate_per_s: float, quantile: float) -> float:
    """Return a quantile of the time in an M/M/1 queue: exponential with rate mu - lambda."""
    return float(-np.log1p(-quantile) / (1 / mean_ms - rate_per_s / 1e3))


def discrete_sojourn_ms(
    times_ms: Times, shares: Times, rate_per_s: float, quantile: float, *, step_ms: float = STEP_MS
) -> float:
    """Return a quantile of the time in an M/G/1 queue; service takes `times_ms[i]` with probability `shares[i]`.

    The waiting time has the transform of Pollaczek and Khinchine, (1 - rho) / (1 - rho R), where R is that of the
    residual service time (Asmussen, Applied Probability and Queues, 2003, VIII.5). On a lattice of `step_ms` a
    Fourier transform inverts it. Raises ValueError if the rate is not below the capacity.
    """
    mean_ms = float(times_ms @ shares)
    busy = rate_per_s * mean_ms / 1e3
    if not busy < 1:
        raise ValueError(
            f"{rate_per_s}/s are {busy:.2f} of the capacity.\nUse a rate below {1e3 / mean_ms:.0f}/s."
        )
    edges_ms = (np.arange(int(times_ms.max() / step_ms) + 3) - 0.5).clip(0) * step_ms
    residual = np.diff(np.minimum(times_ms, edges_ms[:, None]) @ shares / mean_ms)
    mean_wait_ms = rate_per_s / 1e3 * float(times_ms**2 @ shares) / 2 / (1 - busy)
    size = 2 ** math.ceil(math.log2((50 * mean_wait_ms + 2 * times_ms.max()) / step_ms))  # more has no chance
    wait = np.fft.irfft((1 - busy) / (1 - busy * np.fft.rfft(residual, size)), size)
    at_ms = (np.arange(size) * step_ms + times_ms[:, None]).ravel()
    order = np.argsort(at_ms)
    chance = np.cumsum((shares[:, None] * wait).ravel()[order])
    return float(at_ms[order][np.searchsorted(chance, quantile)])


def sampled_ms(law: Law, rate_per_s: float, n: int, *, runs: int, seed: int) -> Times:
    """Return the p50 and p99 that a perfect instrument reads in `runs` runs of n requests; shape (2, runs).

    The queue is empty when a run starts, and Lindley's recursion gives every request its latency.
    """
    random = np.random.default_rng(seed)
    service = law.draw(random, n * runs).reshape(n, runs)
    if law.queues:
        gaps = random.exponential(1e3 / rate_per_s, (n, runs))
        wait = np.zeros(runs)
        for customer in range(n):
            service[customer] += wait
            wait = np.maximum(0.0, service[customer] - gaps[customer])
    read: Times = np.quantile(service, (0.5, 0.99), axis=0, method="inverted_cdf")
    return read


_TIMES, _SHARES = np.array([SHORT_MS, LONG_MS]), np.array([1 - LONG_SHARE, LONG_SHARE])

LAWS = {
    law.name: law
    for law in (
        Law(
            name="fixed delay",
            draw=lambda _random, n: np.full(n, FIXED_MS),
            latency_ms=lambda _rate, _quantile: FIXED_MS,
            queues=False,
        ),
        Law(
            name="M/M/1",
            draw=lambda random, n: random.exponential(MEAN_MS, n),
            latency_ms=lambda rate, quantile: exponential_sojourn_ms(MEAN_MS, rate, quantile),
            queues=True,
        ),
        Law(
            name="two-point M/G/1",
            draw=lambda random, n: random.choice(_TIMES, n, p=_SHARES),
            latency_ms=lambda rate, quantile: discrete_sojourn_ms(_TIMES, _SHARES, rate, quantile),
            queues=True,
        ),
    )
}
