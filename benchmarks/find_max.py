"""Search for the highest rate, as `loadtest --find-max` does, on drawn queues whose capacity is known.

    python benchmarks/find_max.py [--queues 14] [--runs 4] [--seconds 40] [--seed 77]

Queues are drawn: one to three instances, batches of up to 32, executions of 0.3 to 20 ms, limits of 1.6 to 20
times the latency of a request that is alone. Their capacity is found by simulating a far longer time. Everything
is in virtual time, with Poisson arrivals; nothing is known to the search but the limit.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean, median

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from simulated_load import SimulatedLoad
from simulated_queues import Queue, batching_server

from loadgen.command.find_max import RESOLUTION, SEARCH_SHARE
from loadgen.spec.limits import LatencyLimit
from loadgen.statistics.confirm import confirm
from loadgen.statistics.find_capacity import find_capacity


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queues", type=int, default=14)
    parser.add_argument("--runs", type=int, default=4, help="searches on each queue")
    parser.add_argument("--seconds", type=float, default=40.0, help="of load in each search")
    parser.add_argument("--seed", type=int, default=77)
    given = parser.parse_args()
    rng = np.random.default_rng(given.seed)
    print("| queue | capacity | estimated / capacity | certified / capacity, lowest | none | above |")
    print("|---|--:|--:|--:|--:|--:|")
    found = []
    for queue in (drawn_queue(rng) for _ in range(given.queues)):
        each = [searched(queue, given.seconds, run) for run in range(given.runs)]
        print_row(queue.name, f"{queue.rate_at_limit_per_s:,.0f}/s", each)
        found += each
    print_row("all", "", found)


def print_row(name: str, capacity: str, each: list[tuple[float, float]]) -> None:
    estimated, certified = [one for one, _ in each], [one for _, one in each]
    error = math.sqrt(mean((one - 1) ** 2 for one in estimated))
    promised = f"{mean(certified):.2f}, {min(certified):.2f} (median {median(certified):.2f})"
    above = sum(one > 1 for one in certified)
    print(
        f"| {name} | {capacity} | {mean(estimated):.2f} (error {error:.2f}) | {promised} | "
        f"{sum(not one for one in certified)} of {len(each)} | {above} |",
        flush=True,
    )


def drawn_queue(rng: np.random.Generator) -> Queue:
    """Return a queue with its capacity."""
    instances, largest = int(rng.integers(1, 4)), int(rng.choice([1, 4, 8, 32]))
    fixed_s = math.exp(rng.uniform(math.log(3e-4), math.log(1e-2)))
    each_s = fixed_s * math.exp(rng.uniform(math.log(0.02), math.log(2.0)))
    limit_ms = 1e3 * (fixed_s + each_s) * math.exp(rng.uniform(math.log(1.6), math.log(20.0)))
    served = partial(batching_server, fixed_s=fixed_s, each_s=each_s, max_batch=largest, instances=instances)
    name = f"{instances} x batch {largest}, {1e3 * fixed_s:.2g} + {1e3 * each_s:.2g} ms, limit {limit_ms:.3g} ms"
    queue = Queue(name=name, completions=served, limit_ms=limit_ms, rate_at_limit_per_s=math.nan)
    high = instances * largest / (fixed_s + each_s * largest)
    low = high / 100
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        late = queue.share_over_limit(middle, seed=5, requests=4e5, runs=40)
        low, high = (low, middle) if late > 0.01 else (middle, high)
    return replace(queue, rate_at_limit_per_s=math.sqrt(low * high))


def searched(queue: Queue, seconds: float, run: int) -> tuple[float, float]:
    """Return the estimated and the certified rate over the capacity; 0: none."""
    limit, seed = LatencyLimit(limit_ms=queue.limit_ms), 1_000_003 * run
    load = SimulatedLoad(queue)
    estimate = find_capacity(
        load, limits=(limit,), budget_s=SEARCH_SHARE * seconds, seed=seed, resolution=RESOLUTION
    )
    if estimate.known is None or estimate.rate_per_s is None:
        return 0.0, 0.0
    found = confirm(
        load, estimate.known, estimate.steady, limit=limit, budget_s=seconds - estimate.load_s, seed=seed + 7
    )
    certified_per_s = 0.0 if found.met is None else found.met.rate_per_s
    return estimate.rate_per_s / queue.rate_at_limit_per_s, certified_per_s / queue.rate_at_limit_per_s


if __name__ == "__main__":
    main()
