"""Measure what Triton's gRPC front end lets through, by settings of its memory allocator.

    python benchmarks/grpc_front_end.py OUT.jsonl [--repeats 3] [--processes 8] [--rates 40000,54000]

Our backend serves a model that adds 1 to rows of 1 KiB, with numpy on four slots, so that little but the front end
works: no GPU is needed, but cores are (16: half for the load). The settings are taken in turn, each on a new
server: a closed loop of 512, then an open loop at each rate. Appends a line a run.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import numpy_slots
from http_front_end import thread_ticks
from lib.raw_lines import add_line

from loadgen.sending.generator import LoadGenerator
from loadgen.spec.plan import ClosedLoopPlan, LoadPlan, Payload
from loadgen.spec.target import Target
from model_repo.repository.write import write_repository
from model_repo.server.control import load_model
from model_repo.server.options import ServerOptions
from model_repo.server.triton import serve
from model_repo.spec import Engine, ServingConfig, TensorSpec

SECONDS = 2.5
POOL = "--grpc-infer-allocation-pool-size=1024"
USUAL, LARGE = "glibc.malloc.tcache_count=7", "glibc.malloc.tcache_count=2000"
SETTINGS: tuple[tuple[str, tuple[str, ...]], ...] = ((USUAL, ()), (USUAL, (POOL,)), (LARGE, ()), (LARGE, (POOL,)))
"""glibc's tunables and arguments of tritonserver. A thread caches 7 free blocks of each size by default."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--processes", type=int, default=8, help="of the load generator")
    parser.add_argument("--rates", default="40000,54000", help="requests per second of the open loops")
    given = parser.parse_args()
    rates = [float(word) for word in given.rates.split(",")]
    for repeat in range(given.repeats):
        for tunables, arguments in SETTINGS:
            os.environ["GLIBC_TUNABLES"] = tunables
            for line in runs(arguments, given.processes, rates):
                line |= {"repeat": repeat, "tunables": tunables, "arguments": arguments, "cores": os.cpu_count()}
                print(add_line(given.out, line))


def runs(arguments: tuple[str, ...], processes: int, rates: list[float]) -> Iterator[dict[str, Any]]:
    """Yield the figures of each loop on a new server."""
    with tempfile.TemporaryDirectory() as folder:
        options = ServerOptions(run_dir=Path(folder), protocol="grpc", runtime="slots", extra_arguments=arguments)
        with serve(options) as server, LoadGenerator(processes=processes) as generator:
            write_model(server.repository)
            load_model(server.endpoint, "m", timeout_s=60.0)
            url, headers = server.endpoint.url("grpc"), server.endpoint.headers("grpc")
            target = Target(url=url, model_name="m", headers=headers)
            generator.run(target, ClosedLoopPlan(concurrency=64, duration_s=1.0), payload=Payload(seed=1))
            for rate in (None, *rates):
                before = sum(thread_ticks().values())
                plan = (
                    ClosedLoopPlan(concurrency=512, duration_s=SECONDS)
                    if rate is None
                    else LoadPlan(rate_per_s=rate, duration_s=SECONDS, seed=1)
                )
                seen = generator.run(target, plan, payload=Payload(seed=1)).measurement
                ticks = sum(thread_ticks().values()) - before
                yield {
                    "offered_per_s": rate,
                    "achieved_per_s": round(seen.achieved_rate_per_s),
                    "p50_ms": seen.p50_ms,
                    "p99_ms": seen.p99_ms,
                    "failed": sum(seen.errors.values()),
                    "server_us_a_request": round(1e6 * ticks / os.sysconf("SC_CLK_TCK") / max(1, seen.n), 1),
                }


def write_model(repository: Path) -> None:
    """Write a model of our backend whose engine is numpy."""
    plan = repository.parent / "model.plan"
    plan.write_bytes(b"")
    engine = Engine(
        model_name="m",
        backend="tensorrt_rtx",
        precision="fp16",
        model_file="model.plan",
        files=(("model.plan", plan),),
        inputs=(TensorSpec(name="x", datatype="FP32", shape=(256,)),),
        outputs=(TensorSpec(name="y", datatype="FP32", shape=(256,)),),
        batched=True,
        device="gpu",
    )
    config = ServingConfig(engine=engine, max_batch_size=numpy_slots.ROWS, instance_count=4)
    model = write_repository(repository, config, runtime="slots")
    numpy_slots.serve_numpy(model / "1")
    pbtxt = model / "config.pbtxt"
    pbtxt.write_text(pbtxt.read_text().replace("KIND_GPU", "KIND_CPU"))


if __name__ == "__main__":
    main()
