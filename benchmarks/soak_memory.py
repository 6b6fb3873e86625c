"""Check that the memory of a load test stays flat: the private memory of all its processes at a high rate.

    python benchmarks/soak_memory.py --rate 5000 --seconds 600 [--processes 1] [--output rss.csv]

Starts the embedded Triton with a model that ignores its input, loads it as in a run that is longer than memory,
and samples the private memory of this process and its load processes every second. Prints each one's memory at a
quarter of the run, at its end and at its peak, and the growth between the first two.
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path
from threading import Event, Thread

import psutil
from load_generator import MODEL, triton

from loadgen.measurement.row_file import RowFile
from loadgen.sending.generator import LoadGenerator
from loadgen.spec.plan import LoadPlan
from loadgen.spec.target import Target

Sample = dict[int, int]  # process id -> private bytes, without pages of files and of shared memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=5000.0)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--output", type=Path, help="every sample, as CSV")
    options = parser.parse_args()
    plan = LoadPlan(rate_per_s=options.rate, duration_s=options.seconds, seed=1, timeout_s=5.0)
    samples: list[tuple[float, Sample]] = []
    ended = Event()
    with triton(250) as endpoint, LoadGenerator(options.processes) as generator, RowFile(Path()) as rows:
        sampler = Thread(target=watch, args=([psutil.Process().pid, *generator.pids], samples, ended))
        sampler.start()
        target = Target(url=f"http://{endpoint.host}:{endpoint.http_port}", model_name=MODEL)
        try:
            seen = generator.run(target, plan, rows=rows, watch=lambda log: len(log) < 0).measurement
        finally:
            ended.set()
            sampler.join()
    print(f"{seen.n:,} requests, {seen.achieved_rate_per_s:.0f}/s, p99 {seen.p99_ms:.2f} ms; {seen.problems}")
    print(table(samples))
    if options.output:
        write(options.output, samples)


def watch(pids: list[int], samples: list[tuple[float, Sample]], ended: Event) -> None:
    started = time.monotonic()
    while not ended.wait(1.0):
        memory = {pid: private_bytes(pid) for pid in pids}
        samples.append((time.monotonic() - started, memory))


def private_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))


def table(samples: list[tuple[float, Sample]]) -> str:
    """Return the growth from a quarter of the run to its end: the first quarter warms up the ring and the code."""
    lines = ["| process | at a quarter, MB | at the end | peak | growth |", "|---|---|---|---|---|"]
    for number, pid in enumerate(samples[0][1]):
        series = [memory[pid] / 1e6 for _, memory in samples]
        quarter, end = series[len(series) // 4], series[-1]
        name = "parent" if number == 0 else f"load process {number}"
        lines.append(f"| {name} | {quarter:.1f} | {end:.1f} | {max(series):.1f} | {end - quarter:+.1f} |")
    return "\n".join(lines)


def write(path: Path, samples: list[tuple[float, Sample]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["seconds", *(f"pid_{pid}_bytes" for pid in samples[0][1])])
        writer.writerows([round(second, 1), *memory.values()] for second, memory in samples)


if __name__ == "__main__":
    main()
