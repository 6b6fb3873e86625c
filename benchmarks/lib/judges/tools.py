"""Load one server of a known law with one tool, and read what the tool and the server's own clock say."""

from __future__ import annotations

import contextlib
import csv
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from lib.judges.laws import Law

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from fake_triton import FakeTriton, fake_triton  # noqa: E402 - found by the line above

from loadgen.measurement.cpu_contention import counters_of_family  # noqa: E402
from loadgen.sending.generator import LoadGenerator  # noqa: E402
from loadgen.spec.plan import LoadPlan  # noqa: E402
from loadgen.spec.target import Target  # noqa: E402

SPARE = 1.5
"""The server knows so many times the service times that a run needs: tools send a little longer than planned."""

Figures = dict[str, Any]
"""Of one run; times in ms, rates in requests/s."""

Tool = Callable[[FakeTriton, float, float, int], Figures]


class ToolFailed(Exception):
    """The tool ended without figures; its text is the reason."""


def measured(tool: Tool, law: Law, rate_per_s: float, seconds: float, *, seed: int) -> Figures:
    """Return the figures of one run on a server of its own; `failure` is the reason if there are none.

    `server_p50_ms` and `server_p99_ms` are the sojourn times of the same requests by the server's clock.
    `others_cores` are the processors that processes of others and other guests of the host took meanwhile.
    """
    with known_server(law, rate_per_s, seconds, seed=seed) as server:
        counters = counters_of_family()
        before = counters()
        try:
            figures = tool(server, rate_per_s, seconds, seed)
        except ToolFailed as failure:
            return {"failure": str(failure)}
        after = counters()
        kept_ns, arrived_ns = server.kept(figures["requests"])
    gaps_s = np.diff(np.sort(arrived_ns)) / 1e9
    watched_s = after.at_s - before.at_s
    others_s = after.busy_s - before.busy_s - (after.ours_s - before.ours_s) + after.stolen_s - before.stolen_s
    p50_ns, p99_ns = np.quantile(kept_ns, (0.5, 0.99), method="inverted_cdf")
    return figures | {
        "server_p50_ms": float(p50_ns) / 1e6,
        "server_p99_ms": float(p99_ns) / 1e6,
        "sent_per_s": round(float(1 / gaps_s.mean()), 2),
        "variation_of_gaps": round(float(gaps_s.std() / gaps_s.mean()), 3),
        "others_cores": round(max(0.0, others_s / watched_s), 3),
    }


@contextmanager
def known_server(law: Law, rate_per_s: float, seconds: float, *, seed: int) -> Iterator[FakeTriton]:
    """Start a server that takes the law's service times, drawn with this seed."""
    # Not the seed alone: our schedule is drawn with it, and gaps like the service times leave the queue empty.
    random = np.random.default_rng([seed, 1])
    times_ms = law.draw(random, round(SPARE * rate_per_s * seconds))
    with tempfile.NamedTemporaryFile() as file:
        file.write((times_ms * 1e6).astype(np.int64).tobytes())
        file.flush()
        queue = ["--one-at-a-time"] if law.queues else []
        with fake_triton("--delays-ns", file.name, *queue) as server:
            yield server


def ours(server: FakeTriton, rate_per_s: float, seconds: float, seed: int) -> Figures:
    """Measure with the engine of `loadtest`: latency counts from the scheduled time of a request."""
    with LoadGenerator() as generator:
        plan = LoadPlan(rate_per_s=rate_per_s, duration_s=seconds, seed=seed)
        run = generator.run(Target(url=server.url, model_name="delay"), plan)
    p50_ns, p99_ns = np.quantile(run.log.latency_ns, (0.5, 0.99), method="inverted_cdf")
    return {
        "requests": len(run.log),
        "p50_ms": float(p50_ns) / 1e6,
        "p99_ms": float(p99_ns) / 1e6,
        "problems": list(run.measurement.problems),
    }


def perf_analyzer(program: Path, *options: str) -> Tool:
    """Return a tool that runs perf_analyzer over HTTP; it measures latency from when a request leaves."""

    def run(server: FakeTriton, rate_per_s: float, seconds: float, _seed: int) -> Figures:
        with tempfile.NamedTemporaryFile(suffix=".csv") as report:
            command = [
                str(program), "-m", "delay", "-i", "http", "-u", server.url.removeprefix("http://"),
                "--request-rate-range", f"{rate_per_s:.0f}", "--request-distribution", "poisson",
                "-p", f"{seconds * 1e3 / 3:.0f}", "-s", "999", "-r", "3", "--percentile=99",
                "-f", report.name, *options,
            ]  # fmt: skip
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
                with contextlib.suppress(PermissionError):  # our load processes have this priority if permitted
                    os.sched_setscheduler(process.pid, os.SCHED_RR, os.sched_param(1))
                try:
                    output, _ = process.communicate(timeout=60 + 5 * seconds)
                except subprocess.TimeoutExpired:
                    process.kill()
                    raise ToolFailed(f"no result within {60 + 5 * seconds:.0f} s") from None
            lines = Path(report.name).read_text().splitlines()
        if process.returncode != 0 or len(lines) < 2:
            said = output.decode(errors="replace").strip().splitlines() or [""]
            raise ToolFailed(f"exit code {process.returncode}: {said[-1]}")
        row = next(csv.DictReader(lines))
        return {
            "requests": len(server.document("/kept")["kept_ns"]),
            "p50_ms": float(row["p50 latency"]) / 1e3,
            "p99_ms": float(row["p99 latency"]) / 1e3,
            "problems": [],
        }

    return run


TOOLS: dict[str, Callable[[Path], Tool]] = {
    "ours": lambda _program: ours,
    "perf_analyzer": perf_analyzer,
    "perf_analyzer, 64 threads": lambda program: perf_analyzer(program, "--max-threads", "64"),
}
"""The tools by name, made with the path of perf_analyzer."""
