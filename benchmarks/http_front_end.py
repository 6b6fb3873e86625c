"""Measure Triton's HTTP front end under many connections: which of its threads work, and which responses get lost.

    python benchmarks/http_front_end.py [--connections 64,512] [--row 3x224x224] [--server-argument ...]

A model that does nothing (a batch of up to 64 sleeps for 3 ms) is served on two instances of the embedded
Triton, under a closed loop. Two findings, each with its figures:

- A connection goes to the first idle HTTP thread, so nearly all go to the first one. Shown by the share of the
  processor time that the server's busiest thread took, compared with that of the instances' threads.
- The responses of a batch reach the HTTP thread through a socket; those that do not fit are dropped. Shown by
  requests that the server counts as answered and the client does not. `net.core.wmem_default` is the space.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from loadgen.measurement.result import lost_answers
from loadgen.sending.generator import LoadGenerator
from loadgen.spec.plan import ClosedLoopPlan, Payload
from loadgen.spec.target import Target
from model_repo.server.options import ServerOptions
from model_repo.server.triton import serve
from model_repo.spec import Engine, ServingConfig, TensorSpec

SECONDS = 3.0
MODEL = """
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            rows = pb_utils.get_input_tensor_by_name(request, "x").as_numpy().shape[0]
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", np.zeros((rows, 8), np.float32))]))
        time.sleep(0.003)
        return answers
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", default="64,512,512,512", help="of one closed loop after the other")
    parser.add_argument("--protocol", choices=["http", "grpc"], default="http")
    parser.add_argument("--processes", type=int, default=1, help="of the load generator")
    parser.add_argument("--row", default="3x224x224", help="shape of an fp16 input")
    parser.add_argument("--server-argument", action="append", default=[], help="of tritonserver")
    arguments = parser.parse_args()
    shape = tuple(int(size) for size in arguments.row.split("x"))
    limit = Path("/proc/sys/net/core/wmem_default").read_text().strip()
    conditions = [f"net.core.wmem_default {limit}", *arguments.server_argument]
    print(f"{arguments.protocol}, rows of {arguments.row} fp16, {' '.join(conditions)}")
    with tempfile.TemporaryDirectory() as folder:
        config = ServingConfig(engine=nothing(Path(folder), shape), max_batch_size=64, instance_count=2)
        options = ServerOptions(
            run_dir=Path(folder), protocol=arguments.protocol, extra_arguments=tuple(arguments.server_argument)
        )
        with serve(options) as server, LoadGenerator(processes=arguments.processes) as generator:
            server.load(config)
            endpoint, protocol = server.endpoint, arguments.protocol
            target = Target(url=endpoint.url(protocol), model_name="nothing", headers=endpoint.headers(protocol))
            generator.run(target, ClosedLoopPlan(concurrency=16, duration_s=1.0), payload=Payload(seed=1))
            for connections in (int(word) for word in arguments.connections.split(",")):
                print(one_loop(generator, target, connections))


def nothing(folder: Path, shape: tuple[int, ...]) -> Engine:
    """Return an engine whose `model.py` is `MODEL`."""
    path = folder / "model.py"
    path.write_text(MODEL)
    return Engine(
        model_name="nothing",
        backend="onnxruntime",
        precision="fp16",
        model_file="",
        files=(),
        code=path,
        inputs=(TensorSpec(name="x", datatype="FP16", shape=shape),),
        outputs=(TensorSpec(name="y", datatype="FP32", shape=(8,)),),
        batched=True,
    )


def one_loop(generator: LoadGenerator, target: Target, connections: int) -> str:
    """Run one closed loop; returns its line."""
    ticks = thread_ticks()
    plan = ClosedLoopPlan(concurrency=connections, duration_s=SECONDS)
    seen = generator.run(target, plan, payload=Payload(seed=1)).measurement
    spent = sorted((now - ticks.get(thread, 0) for thread, now in thread_ticks().items()), reverse=True)
    counted = 0 if seen.server is None else seen.server.requests
    lost = lost_answers(seen.n, seen.errors, seen.server)
    return (
        f"{connections} connections: {seen.achieved_rate_per_s:,.0f}/s, "
        f"p50 {seen.p50_ms:.0f} p99 {seen.p99_ms:.0f} ms; "
        f"{seen.n} sent, {counted} counted as answered, {lost} of these lost; "
        "processor time of the server's threads, the busiest first: "
        + ", ".join(f"{100 * one / max(1, sum(spent)):.0f} %" for one in spent[:5])
    )


def thread_ticks() -> dict[str, int]:
    """Return the processor time of each thread of every tritonserver here, in ticks."""
    found = {}
    for comm in Path("/proc").glob("[0-9]*/comm"):
        try:
            if comm.read_text().strip() != "tritonserver":
                continue
            for stat in comm.parent.glob("task/*/stat"):
                fields = stat.read_text().rpartition(")")[2].split()
                found[stat.parent.name] = int(fields[11]) + int(fields[12])
        except OSError:
            continue
    return found


if __name__ == "__main__":
    main()
