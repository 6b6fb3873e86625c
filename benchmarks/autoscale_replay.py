"""Compare the replay of a day on an autoscaled service with the same day simulated request by request.

    python benchmarks/autoscale_replay.py RESULTS.jsonl [--servers 12]

Servers, limits and days are drawn; each day is replayed under several targets and starts of replicas, as `optimize
autoscale` does it. The events are Poisson arrivals on the replicas of the replay, each simulated on its own
(tests/support/replayed_events.py). Each comparison is a line of RESULTS.

The thresholds were written here before the first run; a miss is reported, the threshold stays.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import combinations, groupby
from pathlib import Path

import numpy as np
from lib.raw_lines import Line, add_line, verdict

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from replayed_events import late_share_of_events

from deploy.autoscaler import Behavior
from deploy.day import autoscaled, replica_of
from loadgen.spec.limits import LatencyLimit
from search.arrays import Floats
from search.simulator.capacity import rate_at_limit
from search.simulator.server import SimulatedServer
from search.workload import unit_arrivals

MOST_APART = 0.02  # of the late shares
ALIKE = 0.005  # late shares that differ by less have no order
MIN_SAME_ORDER = 0.98  # share of pairs of settings that both put in the same order

LENGTH_S = 3600
TARGETS = (0.5, 0.7, 0.85, 0.95)
STARTS_S = (5.0, 90.0)
DAYS = ("diurnal", "spikes", "walk")


def drawn(number: int) -> tuple[SimulatedServer, LatencyLimit]:
    """Return a server and a limit of two to twelve full batches."""
    rng = np.random.default_rng([7, number])
    fixed_s, each_s = (float(np.exp(rng.uniform(np.log(1e-3), np.log(8e-3)))) for _ in range(2))
    sizes, instances = int(rng.choice([1, 4, 8, 32])), int(rng.integers(1, 4))
    busy = np.arange(instances + 1)
    table = (fixed_s + each_s * np.maximum(np.arange(sizes + 1), 1))[:, None] * np.maximum(busy, 1) ** 0.6
    noise = np.exp(rng.normal(0, 0.05, 4093)) * np.where(rng.random(4093) < 0.002, 1.5, 1.0)
    server = SimulatedServer(service_s=table, overhead_s=5e-4, noise=tuple((noise / noise.mean()).tolist()))
    return server, LatencyLimit(limit_ms=1e3 * server.longest_s * rng.uniform(2, 12))


def traffic(day: str, number: int, capacity_per_s: float) -> Floats:
    """Return the rate in each second, up to six replicas' capacity."""
    rng, at = np.random.default_rng([8, number]), np.arange(LENGTH_S)
    if day == "diurnal":
        shape = 0.15 + 0.85 * (0.5 - 0.5 * np.cos(2 * np.pi * at / LENGTH_S))
    elif day == "spikes":
        begin = rng.integers(300, LENGTH_S - 600, 3)
        shape = 0.3 + 0.7 * np.max([(at >= one) & (at < one + 240) for one in begin], axis=0)
    else:
        shape = np.repeat(np.exp(np.cumsum(rng.normal(0, 0.2, LENGTH_S // 60))), 60)
        shape /= shape.max()
    scaled: Floats = rng.uniform(3, 6) * capacity_per_s * shape
    return scaled


def compared(number: int) -> Iterator[Line]:
    """Yield the comparisons on one server."""
    server, limit = drawn(number)
    capacity_per_s = rate_at_limit(server, (limit,), unit_arrivals(0, requests=40_000))
    replica = replica_of(server, limit, capacity_per_s=capacity_per_s)
    for day in DAYS:
        due_per_s = traffic(day, number, capacity_per_s)
        for start_s in STARTS_S:
            for target in TARGETS:
                rule = Behavior(target_per_s=target * capacity_per_s, min_replicas=1, max_replicas=20)
                replayed = autoscaled(due_per_s, replica, rule, start_s=start_s)
                events = late_share_of_events(replayed, server, limit, seed=number)
                yield {
                    "server": number,
                    "day": day,
                    "start_s": start_s,
                    "target": target,
                    "capacity_per_s": capacity_per_s,
                    "replayed": replayed.late_share,
                    "events": events,
                    "apart": abs(replayed.late_share - events),
                    "replica_hours": replayed.replica_hours,
                }


def main() -> int:
    """Compare, write and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, metavar="RESULTS.jsonl")
    parser.add_argument("--servers", type=int, default=12)
    given = parser.parse_args()
    lines = [add_line(given.results, line) for number in range(given.servers) for line in compared(number)]
    apart = [line["apart"] for line in lines]
    same, pairs = 0, 0
    for _, group in groupby(lines, key=lambda line: (line["server"], line["day"], line["start_s"])):
        for one, other in combinations(list(group), 2):
            if abs(one["events"] - other["events"]) > ALIKE:
                pairs += 1
                same += (one["events"] < other["events"]) == (one["replayed"] < other["replayed"])
    print(f"{len(lines)} days: late shares {float(np.median(apart)):.4f} apart in the median")
    met = [
        verdict("largest difference of late shares", max(apart), "<=", MOST_APART),
        verdict(f"of {pairs} pairs of settings in the same order", same / pairs, ">=", MIN_SAME_ORDER),
    ]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
