"""Run the search without one of its parts, to measure the value of that part.

`replay` estimates the capacity from the share of late requests instead of replaying the arrivals, `simulator`
searches by probing alone, `vif` treats requests as independent.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

ABLATIONS = ("none", "replay", "simulator", "vif")


def search_phase(without: str) -> str:
    """Return the name of its raw lines."""
    return "search" if without == "none" else f"search without {without}"


class ablated:  # noqa: N801 - reads as a clause
    """Disable one part of the search in this process during the block, by replacing one of its functions."""

    def __init__(self, without: str) -> None:
        self.without = without
        self.exchanged: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> dict[str, Callable[..., object]]:
        from loadgen.statistics import slo_test
        from loadgen.statistics.dependence import Clustering
        from search.simulator import capacity
        from search.study.run import SamplerSearch
        from search.trials import predicted_trial

        if self.without == "simulator":
            return {"search": lambda runner: SamplerSearch(runner).run()}
        if self.without == "replay":
            self.exchange(predicted_trial, "replay_run", by_share)
        if self.without == "vif":
            bursts = slo_test.bursts  # type: ignore[attr-defined]

            def independent(*args: Any, **given: Any) -> Clustering | None:
                return None if bursts(*args, **given) is None else Clustering(vif=1.0, size=1.0, size_to_break=1.0)

            self.exchange(slo_test, "bursts", independent)
            self.exchange(capacity, "variance_inflation", lambda _: 1.0)
        return {}

    def exchange(self, module: Any, name: str, other: Any) -> None:
        self.exchanged.append((module, name, getattr(module, name)))
        setattr(module, name, other)

    def __exit__(self, *_: object) -> None:
        for module, name, original in self.exchanged:
            setattr(module, name, original)


def by_share(server: Any, log: Any, limits: Any, *, seed: int, **traffic: Any) -> Any:
    """Return the capacity from the share of late requests and their elasticity, instead of a replay."""
    import numpy as np

    from search.simulator.replay import MIN_ERROR, MIN_REQUESTS, ReplayResult, sharpness_of

    if len(log) < MIN_REQUESTS:
        return None
    rate_per_s = (len(log) - 1) / (float(log.scheduled_ns[-1] - log.scheduled_ns[0]) / 1e9)
    late = max(0.5, float(np.sum(log.latency_ns > limits[0].limit_s * 1e9)))
    _, sharp = sharpness_of(server, limits[:1], rate_per_s, seed, **traffic)
    steps = math.log(late / len(log) / (1 - limits[0].quantile)) / sharp.elasticity
    error = math.hypot(MIN_ERROR, sharp.relative_error(len(log), limits[0].quantile))
    return ReplayResult(rate_per_s=rate_per_s * math.exp(-steps), error=error, slowdown=1.0)
