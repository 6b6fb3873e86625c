"""Compare the cost and accuracy of one load process with perf_analyzer's, with the same Triton at the same time.

    python benchmarks/load_generator.py --perf-analyzer PATH [--quick] [--only grpc-1000] [--highest]

Starts the embedded Triton with a model that ignores its input, and prints for each protocol and body size: the
client's processor time per request at a fixed rate, the ratio of the two, and the latency that each measured after
its first second. With --highest, it prints instead the highest Poisson rate that our one process sends within its
lag limit, and how close to its plan the rate at half of that is. Run it on an idle machine.

perf_analyzer comes with the wheel tritonclient==2.41.0; LD_LIBRARY_PATH must lead to its libb64 and libcudart.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import requests

from loadgen.measurement.request_log import percentiles_ns
from loadgen.measurement.result import MAX_CPU_SHARE
from loadgen.measurement.send_lag import most_send_lag_ms
from loadgen.sending.generator import LoadGenerator
from loadgen.spec.plan import Arrivals, LoadPlan
from loadgen.spec.target import Target
from model_repo.server.hosts import serve_repository
from model_repo.server.options import ServerOptions
from model_repo.spec import Endpoint

MODEL = "swallow"
CONFIG = """
name: "swallow"
backend: "python"
max_batch_size: 64
input {{ name: "x" data_type: TYPE_FP32 dims: {size} }}
output {{ name: "y" data_type: TYPE_FP32 dims: 1 }}
instance_group {{ count: 1 kind: KIND_CPU }}
dynamic_batching {{ }}
"""
CODE = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        zero = np.zeros((1, 1), np.float32)  # of numpy 2, the stub of Triton 24.10 takes only DLPack
        answer = pb_utils.Tensor("y", zero) if np.__version__ < "2" else pb_utils.Tensor.from_dlpack("y", zero)
        return [pb_utils.InferenceResponse([answer]) for _ in requests]
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    protocol: str
    body_bytes: int
    rate_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """`cpu_us` is the client's processor time per request, system calls included."""

    cpu_us: float
    p50_ms: float
    p99_ms: float
    lag_p99_ms: float | None


CASES = (
    Case(protocol="http", body_bytes=1_000, rate_per_s=1000),
    Case(protocol="http", body_bytes=1_000, rate_per_s=2500),
    Case(protocol="grpc", body_bytes=1_000, rate_per_s=1000),
    Case(protocol="grpc", body_bytes=1_000, rate_per_s=2500),
    Case(protocol="http", body_bytes=600_000, rate_per_s=200),
    Case(protocol="grpc", body_bytes=600_000, rate_per_s=200),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--perf-analyzer", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="3 s, once")
    parser.add_argument("--only", help="PROTOCOL-BYTES, such as grpc-1000")
    parser.add_argument("--highest", action="store_true")
    options = parser.parse_args()
    seconds, repeats = (3.0, 1) if options.quick else (options.seconds, options.repeats)
    cases = [case for case in CASES if options.only in (None, f"{case.protocol}-{case.body_bytes}")]
    if options.highest:
        print_highest(cases)
        return
    print("| case | ours us | perf_analyzer us | ratio | p50 ms | p99 ms | lag p99 ms |")
    print("|---|---|---|---|---|---|---|")
    for case in cases:
        with triton(case.body_bytes // 4) as endpoint, LoadGenerator() as generator:
            pairs = [
                (
                    ours(generator, endpoint, case, seconds, seed),
                    theirs(options.perf_analyzer, endpoint, case, seconds),
                )
                for seed in range(repeats)
            ]
        print(line(case, pairs), flush=True)


def print_highest(cases: list[Case]) -> None:
    """Print one line per protocol and body size."""
    print("| case | highest rate | at half of it, achieved / planned |")
    print("|---|---|---|")
    for case in {(case.protocol, case.body_bytes): case for case in cases}.values():
        with triton(case.body_bytes // 4) as endpoint, LoadGenerator() as generator:
            rate = highest_rate(generator, endpoint, case)
            plan = LoadPlan(rate_per_s=rate / 2, duration_s=10.0, seed=2, arrivals=Arrivals(kind="constant"))
            half = generator.run(target_of(endpoint, case), plan).measurement
        name = f"{case.protocol} {case.body_bytes // 1000} kB"
        print(f"| {name} | {rate:.0f} | {half.achieved_rate_per_s / plan.rate_per_s:.5f} |", flush=True)


def line(case: Case, pairs: list[tuple[ProbeResult, ProbeResult]]) -> str:
    """Return the medians of the repeats; the ratio is the median of the pairs' ratios, with its range."""
    mine, other = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    ratios = sorted(b.cpu_us / a.cpu_us for a, b in pairs)

    def both(name: str) -> str:
        return " / ".join(
            f"{statistics.median(getattr(seen, name) for seen in group):.2f}" for group in (mine, other)
        )

    lag = statistics.median(seen.lag_p99_ms or 0.0 for seen in mine)
    return (
        f"| {case.protocol} {case.body_bytes // 1000} kB at {case.rate_per_s:.0f}/s "
        f"| {statistics.median(seen.cpu_us for seen in mine):.0f} "
        f"| {statistics.median(seen.cpu_us for seen in other):.0f} "
        f"| {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) "
        f"| {both('p50_ms')} | {both('p99_ms')} | {lag:.2f} |"
    )


def ours(generator: LoadGenerator, endpoint: Endpoint, case: Case, seconds: float, seed: int) -> ProbeResult:
    plan = LoadPlan(rate_per_s=case.rate_per_s, duration_s=seconds, seed=seed)
    run = generator.run(target_of(endpoint, case), plan)
    seen, warm = run.measurement, run.log.between(min(1.0, seconds / 3), seconds)
    p50_ns, p99_ns = percentiles_ns(warm.latency_ns, (0.5, 0.99))
    return ProbeResult(
        cpu_us=seen.client.cpu_s / seen.n * 1e6,
        p50_ms=p50_ns / 1e6,
        p99_ms=p99_ns / 1e6,
        lag_p99_ms=seen.send_lag_p99_ms,
    )


def theirs(perf_analyzer: Path, endpoint: Endpoint, case: Case, seconds: float) -> ProbeResult:
    """Measure perf_analyzer: its processor time over all requests that the server counted, warm-up included."""
    before = served(endpoint)
    port = endpoint.http_port if case.protocol == "http" else endpoint.grpc_port
    with tempfile.NamedTemporaryFile(suffix=".csv") as report:
        command = [
            str(perf_analyzer), "-m", MODEL, "-i", case.protocol, "-u", f"{endpoint.host}:{port}",
            "--request-rate-range", f"{case.rate_per_s:.0f}", "--request-distribution", "poisson",
            "-p", f"{seconds * 500:.0f}", "-s", "999", "-r", "3", "--percentile=99", "-f", report.name,
        ]  # fmt: skip
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert process.stdout is not None
        output = process.stdout.read().decode(errors="replace")
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise SystemExit(f"perf_analyzer failed with {process.returncode}:\n{output[-2000:]}")
        row = next(csv.DictReader(Path(report.name).read_text().splitlines()))
    return ProbeResult(
        cpu_us=(usage.ru_utime + usage.ru_stime) / (served(endpoint) - before) * 1e6,
        p50_ms=float(row["p50 latency"]) / 1e3,
        p99_ms=float(row["p99 latency"]) / 1e3,
        lag_p99_ms=None,
    )


def highest_rate(generator: LoadGenerator, endpoint: Endpoint, case: Case) -> float:
    """Return the highest rate, in steps of a fifth, at which sends are on time; the server may be overloaded."""
    rate = case.rate_per_s / 2
    best = 0.0
    while True:
        plan = LoadPlan(rate_per_s=rate, duration_s=3.0, seed=1, timeout_s=5.0)
        seen = generator.run(target_of(endpoint, case), plan).measurement
        cpu_share = seen.client.cpu_s / plan.duration_s  # later responses cost hardly anything
        if seen.send_lag_p99_ms > most_send_lag_ms(None) or cpu_share > MAX_CPU_SHARE or seen.errors:
            return best
        best = seen.achieved_rate_per_s
        rate *= 1.2


def target_of(endpoint: Endpoint, case: Case) -> Target:
    port = endpoint.http_port if case.protocol == "http" else endpoint.grpc_port
    return Target(url=f"{case.protocol}://{endpoint.host}:{port}", model_name=MODEL)


def served(endpoint: Endpoint) -> int:
    answer = requests.get(f"{endpoint.url('http')}/v2/models/{MODEL}/stats", timeout=10)
    return int(answer.json()["model_stats"][0]["inference_count"])


@contextmanager
def triton(size: int) -> Iterator[Endpoint]:
    """Start the embedded Triton with the model that ignores its `size` floats."""
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder, "repository")
        version = repository / MODEL / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(CONFIG.format(size=size))
        (version / "model.py").write_text(CODE)
        with serve_repository(repository, ServerOptions(run_dir=Path(folder))) as standing:
            yield standing.endpoint


if __name__ == "__main__":
    main()
