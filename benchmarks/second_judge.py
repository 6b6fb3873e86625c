"""Compare the verdict of MLPerf LoadGen's rule with ours on queues of known capacity.

    python benchmarks/second_judge.py RESULTS.jsonl [--runs 50]

LoadGen's rule, written anew from its sources, and ours are applied to the same runs of simulated queues
(tests/support/simulated_queues.py), at 0.9, 1 and 1.1 times the rate at which one request in a hundred takes
longer than the limit. It takes three minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from lib.raw_lines import Line, add_line

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

LOADS = (0.9, 1.0, 1.1)


def rule_lines(runs: int) -> Iterator[Line]:
    """Yield the verdicts of each queue at each load."""
    from loadgen_rule import verdicts
    from simulated_queues import QUEUES

    for queue in QUEUES:
        for load in LOADS:
            both = verdicts(queue, load, runs=runs)
            theirs, ours = ([pair[place] for pair in both.elements()] for place in (0, 1))
            yield {
                "queue": queue.name,
                "load": load,
                "runs": runs,
                "valid": theirs.count("met"),
                "invalid_slow": theirs.count("violated"),
                "invalid_few": theirs.count("inconclusive"),
                "met": ours.count("met"),
                "violated": ours.count("violated"),
                "inconclusive": ours.count("inconclusive"),
                "opposite": both["met", "violated"] + both["violated", "met"],
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--runs", type=int, default=50)
    options = parser.parse_args()
    for line in rule_lines(options.runs):
        print(json.dumps(line), flush=True)
        add_line(options.results, line)


if __name__ == "__main__":
    main()
