"""Compare two stores for the rows of a run longer than memory: appended to files, or in one mapped file.

    python benchmarks/long_run_log.py --folder DIR [--rows 1e7] [--rate 40000] [--processes 2] [--turns 2]
                                      [--output raw.json] [--full-disk MOUNTED_SMALL_DISK]

Runs the real send loops in their own processes, over a wire that responds at once, in two ways that take turns:
`appended` (a ring in memory, whose rows the parent appends to a file per column, as `loadtest` does) and `mapped`
(the load processes write into one mapped file). Then each way computes the figures and a verdict. DIR must be on a
disk, not on tmpfs. Prints sends per CPU-second, the longest gap between two sends and the part of it in which the
process neither ran nor waited for a core, memory, and seconds. `counted` in the recorded results means streaming
statistics instead of the files; the commit before the files still has them.

With --full-disk, a mounted file system of some 60 MB, it shows how each way ends there instead.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import shutil
import statistics
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
from lib.instant_load import TIMEOUT_S, send
from numpy.typing import NDArray

from loadgen.measurement.request_log import ROW_BYTES, ClientUse
from loadgen.measurement.result import measurement_of
from loadgen.measurement.row_file import RowFile
from loadgen.sending.request_table import LogTable, create_table_fd
from loadgen.sending.ring import RingLog, rows_for
from loadgen.spec.limits import LatencyLimit, Limits
from loadgen.spec.plan import Arrivals, LoadPlan
from loadgen.statistics.checks import judge

LIMITS = Limits(latency=(LatencyLimit(quantile=0.99, limit_ms=50),))
CLIENT = ClientUse(cpu_share=0.1, cpu_s=1.0, bytes_sent=1, bytes_received=1, connections_opened=0)
LOOK_EVERY_S = 0.5
PIECE_BYTES = 32 << 20

Result = dict[str, Any]


def memory_mb(pid: int) -> tuple[float, float]:
    """Return (private anonymous memory, USS) of a process; USS counts pages of files that it alone maps."""
    found = dict(line.split(":") for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    kb = {name: int(text.split()[0]) for name, text in found.items()}
    return kb["Anonymous"] / 1024, (kb["Private_Clean"] + kb["Private_Dirty"]) / 1024


class Memory(Thread):
    """Samples memory every second, until `stop`."""

    def __init__(self, pids: list[int], every_s: float = 1.0) -> None:
        super().__init__()
        self._pids, self._every_s, self._ended = pids, every_s, Event()
        self.samples: list[list[tuple[float, float]]] = []

    def run(self) -> None:
        while not self._ended.wait(self._every_s):
            with contextlib.suppress(OSError):
                self.samples.append([memory_mb(pid) for pid in self._pids])

    def stop(self) -> Result:
        self._ended.set()
        self.join()
        own, quarter = [sample[0] for sample in self.samples], len(self.samples) // 4
        return {
            "parent_private_mb": {
                "quarter": round(own[quarter][0], 1),
                "end": round(own[-1][0], 1),
                "peak": round(max(mb for mb, _ in own), 1),
            },
            "parent_uss_peak_mb": round(max(mb for _, mb in own), 1),
            "load_process_private_peak_mb": round(
                max((each[0] for s in self.samples for each in s[1:]), default=0.0), 1
            ),
        }


def pieces(plan: LoadPlan, rows: int) -> Iterator[NDArray[Any]]:
    step_ns = 1e9 / plan.rate_per_s
    for start in range(0, rows, 1 << 18):
        yield (np.arange(start, min(rows, start + (1 << 18))) * step_ns).astype(np.int64)


def carried_out(fd: int, rows: int, processes: int, *, circular: bool, look: Any) -> Result:
    """Start the load processes on a table, call `look` twice per second until all have sent; return both sums."""
    context = get_context("fork")
    channels, workers = [], []
    for part in range(processes):
        ours, theirs = context.Pipe()
        options = {"circular": circular}
        worker = context.Process(target=send, args=(theirs, fd, rows, part, processes), kwargs=options)
        worker.start()
        channels.append(ours)
        workers.append(worker)
    for channel in channels:
        channel.recv()
    memory = Memory([os.getpid(), *(worker.pid for worker in workers if worker.pid)])
    memory.start()
    cpu, wall = time.process_time(), time.monotonic()
    origin_ns = time.monotonic_ns() + 100_000_000
    for channel in channels:
        channel.send(origin_ns)
    longest_look_s, results = 0.0, []
    for channel in channels:
        while not channel.poll(LOOK_EVERY_S):
            started = time.monotonic()
            look()
            longest_look_s = max(longest_look_s, time.monotonic() - started)
        results.append(channel.recv())
    look()
    seen = memory.stop()
    parent_s = time.process_time() - cpu
    for worker in workers:
        worker.join()
    load_s = sum(each["user_s"] + each["system_s"] for each in results)
    sent = sum(each["sent"] for each in results)
    return {
        "sent": sent,
        "wall_s": round(time.monotonic() - wall, 2),
        "sends_per_cpu_s": round(sent / load_s),
        "sends_per_cpu_s_with_parent": round(sent / (load_s + parent_s)),
        "load_user_s": round(sum(each["user_s"] for each in results), 2),
        "load_system_s": round(sum(each["system_s"] for each in results), 2),
        "parent_cpu_s": round(parent_s, 2),
        "longest_look_s": round(longest_look_s, 3),
        **{
            name: round(max(each[name] for each in results), 3)
            for name in ("longest_gap_ms", "longest_gap_not_for_a_core_ms")
        },
        **{
            name: sum(each[name] for each in results)
            for name in ("gaps_over_1_ms", "gaps_over_1_ms_not_for_a_core", "page_faults")
        },
        **seen,
    }


def summary(draw: Any) -> Result:
    """Return the cost of the figures and of the verdict after the load."""
    memory, started = Memory([os.getpid()], every_s=0.02), time.monotonic()
    memory.start()
    measured, checks = draw()
    seconds = time.monotonic() - started
    time.sleep(0.1)
    seen = memory.stop()
    return {
        "summary_s": round(seconds, 2),
        "n": measured.n,
        "p50_ms": measured.p50_ms,
        "p99_ms": measured.p99_ms,
        "p999_ms": measured.p999_ms,
        "send_lag_p99_ms": measured.send_lag_p99_ms,
        "answer": checks[0].answer,
        "violations": checks[0].violations,
        "summary_private_peak_mb": seen["parent_private_mb"]["peak"],
    }


def appended(plan: LoadPlan, rows: int, processes: int, folder: Path) -> Result:
    with RowFile(folder) as file, ring(plan, rows, processes) as (fd, places, laps):
        seen = carried_out(fd, places, processes, circular=True, look=lambda: file.add(laps.turn()))
        file.add(laps.rest())
        log = file.log()
    return seen | summary(lambda: (measurement_of(log, plan, client=CLIENT), judge(log, LIMITS)))


def mapped(plan: LoadPlan, rows: int, processes: int, folder: Path) -> Result:
    fd = os.open(folder / "table", os.O_CREAT | os.O_RDWR, 0o600)
    started = time.monotonic()
    reserve(fd, rows * ROW_BYTES)
    reserved_s = time.monotonic() - started
    table, at = LogTable(fd, rows), 0
    for piece in pieces(plan, rows):
        table.scheduled_ns[at : at + len(piece)] = piece
        at += len(piece)
    seen = carried_out(fd, rows, processes, circular=False, look=lambda: None)
    os.close(fd)
    log = table.finished(rows)
    found = summary(lambda: (measurement_of(log, plan, client=CLIENT), judge(log, LIMITS)))
    return seen | found | {"reserved_s": round(reserved_s, 2)}


WAYS = {"appended": appended, "mapped": mapped}


@contextlib.contextmanager
def ring(plan: LoadPlan, rows: int, processes: int) -> Iterator[tuple[int, int, RingLog]]:
    places = rows_for(plan.rate_per_s, TIMEOUT_S, processes)
    fd = create_table_fd(places)
    try:
        yield fd, places, RingLog(LogTable(fd, places), pieces(plan, rows), processes)
    finally:
        os.close(fd)


def reserve(fd: int, size: int) -> None:
    for start in range(0, size, PIECE_BYTES):
        os.posix_fallocate(fd, start, min(PIECE_BYTES, size - start))


def full_disk(folder: Path) -> None:
    """Show how each way ends on a full disk; the mapped one with and without a reservation."""

    def write_through_the_map(path: Path, *, reserved: bool) -> None:
        size = 4 * shutil.disk_usage(folder).free
        fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        os.ftruncate(fd, size)
        if reserved:
            reserve(fd, size)
        with mmap.mmap(fd, size) as table:
            for start in range(0, size, 4096):
                table[start] = 1

    def append(path: Path) -> None:
        with path.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 20))

    cases: dict[str, Any] = {
        "mapped, not reserved": lambda path: write_through_the_map(path, reserved=False),
        "mapped, reserved in pieces": lambda path: write_through_the_map(path, reserved=True),
        "appended": append,
    }
    for name, case in cases.items():
        path = folder / "full"
        pid = os.fork()
        if pid == 0:
            try:
                case(path)
            except OSError as error:
                os._exit(error.errno or 1)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        path.unlink()
        print(f"{name}: {f'ended by signal {-code}' if code < 0 else os.strerror(code)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--rows", type=float, default=1e7)
    parser.add_argument("--rate", type=float, default=40_000.0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--only", choices=WAYS)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--full-disk", type=Path)
    options = parser.parse_args()
    if options.full_disk is not None:
        full_disk(options.full_disk)
        return
    rows = round(options.rows)
    plan = LoadPlan(
        rate_per_s=options.rate,
        duration_s=rows / options.rate,
        seed=1,
        timeout_s=TIMEOUT_S,
        arrivals=Arrivals(kind="constant"),
    )
    results: dict[str, list[Result]] = {name: [] for name in WAYS if options.only in (None, name)}
    for turn in range(options.turns):
        for name in results if turn % 2 == 0 else reversed(results):
            folder = options.folder.absolute() / f"long-run-log-{os.getpid()}"
            folder.mkdir()
            try:
                results[name].append(WAYS[name](plan, rows, options.processes, folder))
            finally:
                shutil.rmtree(folder)
            print(name, json.dumps(results[name][-1]), flush=True)
            if options.output is not None:
                options.output.write_text(
                    json.dumps({"arguments": vars(options), **results}, indent=1, default=str)
                )
    for name, found in results.items():
        print(name, statistics.median(each["sends_per_cpu_s"] for each in found), "sends per CPU-second")


if __name__ == "__main__":
    main()
