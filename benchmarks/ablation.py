"""The search without one of its parts, to see what that part pays.

`replay` reads the rate at the limit off the share of late requests instead of replaying the arrivals, `simulator`
searches by probing alone, `vif` takes requests for independent.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

ABLATIONS = ("none", "replay", "simulator", "vif")


def search_phase(without: str) -> str:
    """The name of its raw lines."""
    return "search" if without == "none" else f"search without {without}"


class ablated:  # noqa: N801 - reads as a clause
    """The search without one of its parts, by exchanging a function of it in this process while it lasts."""

    def __init__(self, without: str) -> None:
        self.without = without
        self.exchanged: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> dict[str, Callable[..., object]]:
        import loadgen.certify
        import search.predict
        import search.verification
        from loadgen.bursts import Bursts
        from search.sampling import Sampling

        if self.without == "simulator":
            return {"search": lambda attempts: Sampling(attempts).run()}
        if self.without == "replay":
            self.exchange(search.verification, "verified", by_share)
        if self.without == "vif":
            bursts = loadgen.certify.bursts

            def independent(*args: Any, **given: Any) -> Bursts | None:
                return None if bursts(*args, **given) is None else Bursts(vif=1.0, size=1.0, size_to_break=1.0)

            self.exchange(loadgen.certify, "bursts", independent)
            self.exchange(search.predict, "variance_inflation", lambda _: 1.0)
        return {}

    def exchange(self, module: Any, name: str, other: Any) -> None:
        self.exchanged.append((module, name, getattr(module, name)))
        setattr(module, name, other)

    def __exit__(self, *_: object) -> None:
        for module, name, original in self.exchanged:
            setattr(module, name, original)


def by_share(server: Any, log: Any, promise: Any, *, seed: int, **traffic: Any) -> Any:
    """The rate at the limit from the share of late requests and their elasticity, in place of a replay."""
    import numpy as np

    from search.verify import LEAST_ERROR, LEAST_REQUESTS, Verified, sharpness_of

    if len(log) < LEAST_REQUESTS:
        return None
    rate_per_s = (len(log) - 1) / (float(log.scheduled_ns[-1] - log.scheduled_ns[0]) / 1e9)
    late = max(0.5, float(np.sum(log.latency_ns > promise.limit_s * 1e9)))
    sharp = sharpness_of(server, promise, rate_per_s, seed, **traffic)
    steps = math.log(late / len(log) / (1 - promise.quantile)) / sharp.elasticity
    error = math.hypot(LEAST_ERROR, sharp.relative_error(len(log), promise.quantile))
    return Verified(rate_per_s=rate_per_s * math.exp(-steps), error=error, slowdown=1.0)
