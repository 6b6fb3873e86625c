"""Compare the p50 and p99 of our load generator and of perf_analyzer with latency laws that are known.

    python benchmarks/judges.py RUNS.jsonl --perf-analyzer PATH [--repeats 5] [--seconds 10]
    python benchmarks/judges.py RUNS.jsonl            # only the table, from the raw lines

The server is the fake Triton of tests/support over HTTP. It takes service times that were drawn ahead, and records
by its own clock how long it kept each request: a fixed delay, an M/M/1 queue and an M/G/1 queue with two service
times, at 30, 60 and 80 % of the capacity under Poisson arrivals. Our engine counts latency from the scheduled time
of a request, perf_analyzer from the moment when it leaves. Over HTTP each thread of perf_analyzer has one request
in flight; it runs with its default for request rates, 4 threads, and with 64. The tools take turns, each with a
server of its own, and with equal service times within a repeat. All run with real-time priority if that is
permitted.

RUNS.jsonl gets a raw line per run. A second call continues after the last one. Columns of the table: the law; the
error of each tool against it, as the median of the repeats with the lowest and highest; the error that a perfect
instrument has in nine runs of ten, because a run is a sample; the error against the server's own clock in the same
run; the rate that arrived; and the processors that other processes and other guests of the host took.

perf_analyzer comes with the wheel tritonclient==2.41.0; LD_LIBRARY_PATH must lead to its libb64 and libcudart.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from lib.judges.laws import LAWS, MEAN_MS, Law, sampled_ms
from lib.judges.tools import TOOLS, Figures, measured
from lib.raw_lines import add_line, lines_of

from optimizer.machine.hardware import hardware, hardware_label

LOADS = (0.3, 0.6, 0.8)
"""The rates, as shares of the capacity of the queues; the fixed delay gets the same rates."""

PERFECT_RUNS = 400
HEADS = (
    "law", "rate", "tool", "p50, p99, ms", "error of p50, %", "error of p99, %", "perfect: p99, %",
    "p50, p99 against the server's clock, ms", "arrived, /s", "others, cores", "failed",
)  # fmt: skip
QUANTILES = {"p50": 0.5, "p99": 0.99}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, metavar="RUNS.jsonl")
    parser.add_argument("--perf-analyzer", type=Path, metavar="PATH")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each run")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    if options.perf_analyzer is not None:
        compare(options.runs, options.perf_analyzer, options.seconds, options.repeats)
    print(table(lines_of(options.runs)), end="")


def compare(runs: Path, perf_analyzer: Path, seconds: float, repeats: int) -> None:
    """Measure what the file does not hold yet."""
    done = {(line["repeat"], line["law"], line["load"], line["tool"]) for line in lines_of(runs)}
    where = {"machine": hardware_label(hardware()), "system": f"{platform.system()} {platform.release()}"}
    for repeat, law, load, tool in itertools.product(range(repeats), LAWS.values(), LOADS, TOOLS):
        if (repeat, law.name, load, tool) not in done:
            rate_per_s = load * 1e3 / MEAN_MS
            known = {"repeat": repeat, "law": law.name, "load": load, "rate_per_s": rate_per_s, "tool": tool}
            figures = measured(TOOLS[tool](perf_analyzer), law, rate_per_s, seconds, seed=1000 + repeat)
            errors = errors_of(figures, law, rate_per_s) if "failure" not in figures else {}
            line = known | {"seconds": seconds} | figures | errors | where
            print(json.dumps(add_line(runs, line)), flush=True)


def errors_of(figures: Figures, law: Law, rate_per_s: float) -> Figures:
    """Return the law's quantiles, and the errors of a run against them and against the server's clock."""
    perfect_ms = sampled_ms(law, rate_per_s, figures["requests"], runs=PERFECT_RUNS, seed=1)
    errors: Figures = {}
    for (name, quantile), sampled in zip(QUANTILES.items(), perfect_ms, strict=True):
        law_ms = law.latency_ms(rate_per_s, quantile)
        low, high = sorted(sampled)[PERFECT_RUNS // 20], sorted(sampled)[-PERFECT_RUNS // 20]
        errors |= {
            f"law_{name}_ms": law_ms,
            f"{name}_error": figures[f"{name}_ms"] / law_ms - 1,
            f"{name}_perfect_low": low / law_ms - 1,
            f"{name}_perfect_high": high / law_ms - 1,
            f"{name}_minus_server_ms": figures[f"{name}_ms"] - figures[f"server_{name}_ms"],
        }
    return {name: round(float(value), 5) for name, value in errors.items()}


def table(lines: Sequence[Figures]) -> str:
    """Return the table in Markdown, a line per law, rate and tool."""
    rows = [
        f"| {' | '.join(HEADS)} |",
        "|---" * len(HEADS) + "|",
    ]
    for law, load, tool in itertools.product(LAWS, LOADS, TOOLS):
        cell = [line for line in lines if (line["law"], line["load"], line["tool"]) == (law, load, tool)]
        if cell:
            rows.append(row(cell))
    return "\n".join(rows) + "\n"


def row(cell: Sequence[Figures]) -> str:
    """Return the line of one law, rate and tool."""
    good = [line for line in cell if "failure" not in line]
    failed = [line["failure"] for line in cell if "failure" in line]

    def middle(name: str, form: str, scale: float = 1.0) -> str:
        return _middle((scale * line[name] for line in good), form)

    cells = [
        cell[0]["law"],
        f"{cell[0]['rate_per_s']:.0f}/s, {cell[0]['load']:.0%}",
        cell[0]["tool"],
        f"{good[0]['law_p50_ms']:.2f}, {good[0]['law_p99_ms']:.2f}" if good else "-",
        middle("p50_error", "+.1f", 100),
        middle("p99_error", "+.1f", 100),
        f"{100 * good[0]['p99_perfect_low']:+.1f} to {100 * good[0]['p99_perfect_high']:+.1f}" if good else "-",
        f"{middle('p50_minus_server_ms', '+.2f')}, {middle('p99_minus_server_ms', '+.2f')}",
        middle("sent_per_s", ".0f"),
        middle("others_cores", ".2f"),
        f"{len(failed)} of {len(cell)}: {failed[-1]}" if failed else f"0 of {len(cell)}",
    ]
    return f"| {' | '.join(cells)} |"


def _middle(values: Iterable[float], form: str) -> str:
    """Return the median, with the lowest and the highest."""
    seen = sorted(values)
    if not seen:
        return "-"
    return f"{statistics.median(seen):{form}} ({seen[0]:{form}} to {seen[-1]:{form}})"


if __name__ == "__main__":
    main()
