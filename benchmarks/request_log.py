"""Measure what the request log costs: sends per CPU-second, gaps between sends, and the figures afterwards.

    python benchmarks/request_log.py [--rows 1e7] [--rate 40000] [--processes 2] [--turns 2] [--at-once]
                                    [--output raw.json]

Runs the real send loops in their own processes, over a wire that responds at once, and computes the figures and a
verdict from their log. With --at-once all requests are due at the start, so that they send without a pause.
Prints sends per CPU-second of the load processes, the longest gap between two sends and how much of it the process
neither ran nor waited for a core, and the seconds and the memory of the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from lib.instant_load import TIMEOUT_S, send

from loadgen.measurement.request_log import RequestLog
from loadgen.measurement.result import ShardResult, measurement_of
from loadgen.sending.request_table import LogTable, create_table_fd
from loadgen.spec.limits import LatencyLimit, Limits
from loadgen.spec.plan import Arrivals, LoadPlan
from loadgen.statistics.checks import judge
from loadgen.traffic.arrivals import schedule

LIMITS = Limits(latency=(LatencyLimit(quantile=0.99, limit_ms=50),))
PROCESS = ShardResult(
    rows=0, overloaded=False, wall_s=10.0, cpu_s=1.0, bytes_sent=1, bytes_received=1, connections_opened=0,
    error_example=None,
)  # fmt: skip

Result = dict[str, Any]


def carried_out(plan: LoadPlan, processes: int, *, at_once: bool) -> tuple[Result, RequestLog]:
    """Send the plan from several processes; return the sums of their figures, and the log."""
    due_ns = schedule(plan) * (not at_once)
    fd, context = create_table_fd(len(due_ns)), get_context("fork")
    table = LogTable(fd, len(due_ns))
    table.scheduled_ns[:] = due_ns
    channels, workers = [], []
    for part in range(processes):
        ours, theirs = context.Pipe()
        worker = context.Process(target=send, args=(theirs, fd, len(due_ns), part, processes))
        worker.start()
        channels.append(ours)
        workers.append(worker)
    for channel in channels:
        channel.recv()
    origin_ns = time.monotonic_ns() + 100_000_000
    for channel in channels:
        channel.send(origin_ns)
    results = [channel.recv() for channel in channels]
    for worker in workers:
        worker.join()
    os.close(fd)
    sums = {name: sum(each[name] for each in results) for name in results[0] if "longest" not in name}
    most = {name: round(max(each[name] for each in results), 3) for name in results[0] if "longest" in name}
    per_cpu_s = round(sums["sent"] / (sums["user_s"] + sums["system_s"]))
    return {"sends_per_cpu_s": per_cpu_s, **sums, **most}, table.finished(len(due_ns))


def figures(log: RequestLog, plan: LoadPlan) -> Result:
    """Return the cost of the figures and of the verdict."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before, started = peak_bytes(), time.monotonic()
    measured, checks = measurement_of(log, plan, [PROCESS]), judge(log, LIMITS)
    return {
        "figures_s": round(time.monotonic() - started, 2),
        "figures_bytes_per_request": round((peak_bytes() - before) / len(log), 1),
        "p99_ms": measured.p99_ms,
        "send_lag_p99_ms": measured.send_lag_p99_ms,
        "answer": checks[0].answer,
    }


def peak_bytes() -> int:
    (peak_kb,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return 1024 * int(peak_kb)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=float, default=1e7)
    parser.add_argument("--rate", type=float, default=40_000.0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--at-once", action="store_true")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    plan = LoadPlan(
        rate_per_s=options.rate,
        duration_s=options.rows / options.rate,
        seed=1,
        timeout_s=TIMEOUT_S,
        arrivals=Arrivals(kind="constant"),
    )
    results: list[Result] = []
    for _ in range(options.turns):
        seen, log = carried_out(plan, options.processes, at_once=options.at_once)
        results.append({**seen, **figures(log, plan)})
        print(json.dumps(results[-1]), flush=True)
    if options.output is not None:
        options.output.write_text(
            json.dumps({"arguments": vars(options), "turns": results}, indent=1, default=str)
        )
    print(statistics.median(each["sends_per_cpu_s"] for each in results), "sends per CPU-second")


if __name__ == "__main__":
    main()
