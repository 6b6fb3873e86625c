"""What a limit of requests in flight before a replica does to an overload, by simulation.

    python benchmarks/admission.py RESULTS.jsonl [--servers 40]

Servers and limits are drawn as for the replay of days. Each gets Poisson requests at its certified rate (93 % of
what it can do) and at twice that, for `LENGTH_S`, without and with a gateway that refuses what exceeds some number
of requests in flight: what the bundle says (`deploy.scaling.most_in_flight`), and about half and twice as many.
Each case is a line of RESULTS.

The thresholds were written here before the first run; a miss is reported, the threshold stays.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from autoscale_replay import drawn
from lib.raw_lines import Line, add_line, verdict

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from admission_events import admitted

from deploy.scaling import most_in_flight
from search.simulator.capacity import rate_at_limit
from search.workload import unit_arrivals

LENGTH_S = 20.0
CERTIFIED = 0.93  # of the capacity
OVERLOAD = 2.0
MIN_GOODPUT = 0.90  # in time at the overload, of the certified rate
MAX_REFUSED = 0.01  # at the certified rate


def cases(number: int) -> Iterator[Line]:
    """Yield what each limit of requests in flight does on one server."""
    server, limit = drawn(number)
    certified_per_s = CERTIFIED * rate_at_limit(server, (limit,), unit_arrivals(0, requests=40_000))
    for load in (1.0, OVERLOAD):
        requests = round(load * certified_per_s * LENGTH_S)
        arrivals_s = unit_arrivals(number, requests=requests) / (load * certified_per_s)
        for times in (math.inf, 0.5, 1.0, 2.0):
            most = math.inf if times == math.inf else most_in_flight(certified_per_s, times * limit.limit_s)
            latencies_s, refused = admitted(server, arrivals_s, most)
            in_time = int(np.count_nonzero(latencies_s <= limit.limit_s))
            yield {
                "server": number,
                "load": load,
                "limit": "none" if times == math.inf else f"{times:g}",
                "most": None if times == math.inf else most,
                "goodput": in_time / requests * load,
                "refused": refused / requests,
                "latency_of_limit": float(np.quantile(latencies_s, limit.quantile)) / limit.limit_s,
            }


def main() -> int:
    """Simulate, write and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, metavar="RESULTS.jsonl")
    parser.add_argument("--servers", type=int, default=40)
    given = parser.parse_args()
    lines = [add_line(given.results, line) for number in range(given.servers) for line in cases(number)]

    def of(load: float, limit: str, figure: str) -> list[float]:
        return [line[figure] for line in lines if line["load"] == load and line["limit"] == limit]

    for limit in ("none", "0.5", "1", "2"):
        goodput, refused = of(OVERLOAD, limit, "goodput"), of(1.0, limit, "refused")
        print(
            f"{limit}: in time at {OVERLOAD:g} times the certified rate {np.median(goodput):.3f} of it (worst "
            f"{min(goodput):.3f}), p99 up to {max(of(OVERLOAD, limit, 'latency_of_limit')):.2f} of the limit; "
            f"refused at the certified rate {np.median(refused):.4f} (worst {max(refused):.4f})"
        )
    goodput, refused = of(OVERLOAD, "1", "goodput"), of(1.0, "1", "refused")
    met = [
        verdict("in time at the overload, of the certified rate", min(goodput), ">=", MIN_GOODPUT),
        verdict("refused at the certified rate", max(refused), "<=", MAX_REFUSED),
    ]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
