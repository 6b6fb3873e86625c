"""Load several ways to serve an engine on one GPU, each behind the embedded Triton."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib.gpu_engines import build
from lib.gpu_results import LIMIT_MS, MAX_BATCH, Note, save
from loadgen.spec.limits import LatencyLimit
from loadgen.spec.plan import SharedMemory
from model_repo.spec import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """One way to serve; `mps` shares the GPU between the instances through NVIDIA's multi-process service.

    `http_threads` 0 leaves the server its own number.
    """

    instances: int
    delay_us: int = 0
    graphs: bool = True
    mps: bool = False
    http_threads: int = 0
    max_batch_size: int = MAX_BATCH
    backend: str = "tensorrt_rtx"
    protocol: Protocol = "http"
    shared_memory: SharedMemory = "none"

    @property
    def name(self) -> str:
        words = [f"{self.backend} {self.instances}x", f"delay {self.delay_us}us"]
        words += ["graphs" if self.graphs else "no graphs", *(["MPS"] if self.mps else [])]
        words += [f"{self.http_threads} HTTP threads"] if self.http_threads else []
        words += ["gRPC"] if self.protocol == "grpc" else []
        words += ["shared memory"] if self.shared_memory == "system" else []
        words += [f"batch {self.max_batch_size}"] if self.max_batch_size != MAX_BATCH else []
        return ", ".join(words)

    @property
    def server_arguments(self) -> tuple[str, ...]:
        return (f"--http-thread-count={self.http_threads}",) if self.http_threads else ()


DESIGNS = {
    "resnet50": (
        Design(instances=4, delay_us=2000, shared_memory="system"),
        Design(instances=8, shared_memory="system"),
        Design(instances=4, delay_us=2000, shared_memory="system", protocol="grpc"),
        Design(instances=4, delay_us=2000, shared_memory="system", mps=True),
        Design(instances=6, delay_us=4000, shared_memory="system"),
        Design(instances=4, delay_us=2000, protocol="grpc"),
        Design(instances=4, delay_us=2000, http_threads=24),
        Design(instances=8, protocol="grpc"),
        Design(instances=8, http_threads=24),
        Design(instances=4, delay_us=2000, http_threads=24, mps=True),
        Design(instances=8, http_threads=24, mps=True),
        Design(instances=4, delay_us=2000),
        Design(instances=6, delay_us=4000, http_threads=24),
        Design(instances=4, delay_us=2000, http_threads=24, graphs=False),
        Design(instances=3, delay_us=4000, http_threads=24),
        Design(instances=4, delay_us=2000, http_threads=24, max_batch_size=32),
        Design(instances=2, delay_us=2000, http_threads=24),
    ),
    "bert": (Design(instances=2), Design(instances=3, mps=True), Design(instances=1)),
    "mlp": (
        Design(instances=4),
        Design(instances=6),
        Design(instances=4, delay_us=500),
    ),
}


def serve_designs(name: str, out: Path, work: Path, note: Note, deadline: float) -> dict[str, Any]:
    """Measure each design: closed-loop throughput, then the open-loop capacity, whose p99 meets the limit."""
    built, _ = build(name, work / "cache", note)
    result: dict[str, Any] = {"designs": {}}
    for design in DESIGNS[name]:
        if time.monotonic() > deadline - 22:
            note(f"no time left for {design.name}")
            break
        note(f"--- {design.name}")
        row: dict[str, Any] = {}
        result["designs"][design.name] = row
        try:
            with mps(work, note) if design.mps else unchanged():
                serve_one(name, built, design, out, note, deadline, row)
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}"
            note(traceback.format_exc())
            note(getattr(error, "log_tail", ""))
        save(out, f"serve-{name}", result)
    return result


def serve_one(
    name: str, built: Any, design: Design, out: Path, note: Note, deadline: float, row: dict[str, Any]
) -> None:
    """Fill `row` as figures arrive, so that those before a failure are kept."""
    from dataclasses import asdict

    from loadgen.sending.generator import LoadGenerator
    from loadgen.spec.plan import ClosedLoopPlan, Payload
    from loadgen.spec.target import Target
    from loadgen.statistics.find_capacity import find_capacity
    from model_repo.repository.config_pbtxt import graph_batch_sizes
    from model_repo.server.options import ServerOptions
    from model_repo.server.triton import serve
    from model_repo.spec import ServingConfig
    from search.records.slo import WorkloadRecord
    from search.trials.triton_bench import TritonBench
    from search.workload import Workload

    config = ServingConfig(
        engine=built.engine,
        max_batch_size=design.max_batch_size,
        instance_count=design.instances,
        max_queue_delay_us=design.delay_us,
        cuda_graph_batch_sizes=graph_batch_sizes(design.max_batch_size) if design.graphs else (),
    )
    with tempfile.TemporaryDirectory(prefix="gpu-serving-") as run_dir:
        options = ServerOptions(
            run_dir=Path(run_dir),
            gpu=True,
            protocol=design.protocol,
            shared_memory=design.shared_memory == "system",
            extra_arguments=design.server_arguments,
        )
        try:
            with serve(options) as server, LoadGenerator(processes=load_processes()) as generator:
                payload = Payload(seed=1, shared_memory=design.shared_memory)
                workload = Workload(
                    record=WorkloadRecord(protocol=design.protocol, shared_memory=design.shared_memory)
                )
                bench = TritonBench(
                    server, generator, payload=payload, limit_ms=LIMIT_MS, timeout_s=5.0, workload=workload
                )
                bench.load(config)
                row.update(**asdict(design), load_s=bench.spent.loading_s)
                note(f"loaded in {bench.spent.loading_s:.1f} s")
                endpoint = server.endpoint
                target = Target(
                    url=endpoint.url(design.protocol),
                    model_name=built.engine.model_name,
                    headers=endpoint.headers(design.protocol),
                    metrics_url=f"http://{endpoint.host}:{endpoint.metrics_port}/metrics",
                )
                generator.run(target, ClosedLoopPlan(concurrency=64, duration_s=1.0), payload=payload)
                row["closed"] = {}
                users = 2 * design.instances * design.max_batch_size
                for concurrency in (users, 1):
                    before, start = server_cpu_s(), time.monotonic()
                    seconds = 3.0 if concurrency > 1 else 1.0
                    run = generator.run(
                        target, ClosedLoopPlan(concurrency=concurrency, duration_s=seconds), payload=payload
                    )
                    row["closed"][concurrency] = figures(
                        run.measurement, server_cpu_s() - before, time.monotonic() - start
                    )
                    note(f"closed loop {concurrency}: {brief(run.measurement)}")
                most = row["closed"][users]["rate_per_s"]
                probes = []

                def on_probe(seen: Any) -> None:
                    probes.append((seen.rate_per_s, seen.verdict.latency_ms, seen.met, list(seen.problems)))
                    note(
                        f"  {seen.rate_per_s:,.0f}/s: p99 {seen.verdict.latency_ms:.1f} ms "
                        + " ".join(seen.problems)
                    )

                estimate = find_capacity(
                    bench.measure,
                    limits=(LatencyLimit(limit_ms=LIMIT_MS),),
                    budget_s=max(4.0, min(20.0, deadline - time.monotonic() - 6)),
                    seed=7,
                    start_rate_per_s=0.9 * most,
                    on_probe=on_probe,
                )
                row["open"] = {
                    "outcome": estimate.outcome, "reason": estimate.reason, "rate_per_s": estimate.rate_per_s,
                    "lower_per_s": estimate.lower_per_s, "upper_per_s": estimate.upper_per_s, "probes": probes,
                }  # fmt: skip
                last = bench.last_measurement()
                row["last_measurement"] = None if last is None else last.model_dump()
                note(f"highest rate: {estimate.rate_per_s} ({estimate.reason})")
        finally:
            log = options.log_file
            if log.exists():
                with (out / f"serve-{name}.server.log").open("a") as file:
                    file.write(f"=== {design.name}\n{log.read_text(errors='replace')[-20000:]}\n")


def load_processes() -> int:
    return max(1, min(6, len(os.sched_getaffinity(0)) // 3))


def server_cpu_s() -> float:
    """Return the CPU seconds of tritonserver and of its Python backend's processes, so far."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            command, fields = stat.with_name("cmdline").read_bytes(), stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if b"tritonserver" in command or b"triton_python_backend_stub" in command:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def figures(seen: Any, cpu_s: float, wall_s: float) -> dict[str, Any]:
    """Return the part of a measurement that is kept."""
    server = seen.server
    return {
        "rate_per_s": seen.achieved_rate_per_s, "p50_ms": seen.p50_ms, "p99_ms": seen.p99_ms,
        "errors": dict(seen.errors), "error_example": seen.error_example, "problems": list(seen.problems),
        "server_cores": cpu_s / wall_s,
        "requests_per_core_s": seen.n / cpu_s if cpu_s else None,
        "client_cpu_share": seen.client.cpu_share, "client_cpu_s": seen.client.cpu_s,
        "gpu": None if seen.gpu is None else {key: getattr(seen.gpu, key) for key in seen.gpu.__slots__},
        "stages_ms": None if server is None else {
            "queue": server.queue_ms, "input": server.input_ms, "infer": server.infer_ms,
            "output": server.output_ms, "total": server.total_ms, "mean_batch": server.mean_batch_size,
        },
        "batches": [] if server is None else [
            [b.batch_size, b.executions, b.input_ms, b.infer_ms, b.output_ms] for b in server.batches
        ],
    }  # fmt: skip


def brief(seen: Any) -> str:
    server = seen.server
    stages = "" if server is None else (
        f", queue {server.queue_ms:.2f} in {server.input_ms:.2f} infer {server.infer_ms:.2f} "
        f"out {server.output_ms:.2f} ms, mean batch {server.mean_batch_size:.1f}"
    )  # fmt: skip
    errors = f", ERRORS {dict(seen.errors)} {seen.error_example}" if seen.errors else ""
    return (
        f"{seen.achieved_rate_per_s:,.0f}/s, p50 {seen.p50_ms:.2f} p99 {seen.p99_ms:.2f} ms{stages}, "
        f"client core {seen.client.cpu_share:.2f}, gpu {seen.gpu}{errors}"
    )


@contextmanager
def unchanged() -> Any:
    yield


@contextmanager
def mps(work: Path, note: Note) -> Any:
    """Run NVIDIA's multi-process service for processes started in the block. The GPU's settings stay."""
    folder = work / "mps"
    folder.mkdir(exist_ok=True)
    names = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
    os.environ.update(dict.fromkeys(names, str(folder)))
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        raise RuntimeError("there is no nvidia-cuda-mps-control here")
    started = subprocess.run([control, "-d"], capture_output=True, text=True, timeout=20, check=False)
    note(f"MPS: {started.returncode} {started.stdout} {started.stderr}")
    try:
        yield
    finally:
        ended = subprocess.run([control], input="quit\n", capture_output=True, text=True, timeout=30, check=False)
        note(f"MPS quit: {ended.returncode} {ended.stderr}")
        for name in names:
            del os.environ[name]
        for log in folder.glob("*.log"):
            note(f"{log.name}: {log.read_text(errors='replace')[-1500:]}")
