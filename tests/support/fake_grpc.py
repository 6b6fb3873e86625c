"""A Triton over gRPC for the tests of the load generator, on grpcio: an HTTP/2 that is not ours.

`python fake_grpc.py --delay-ms 5` prints its port and serves until its stdin closes. It writes down, by its own
clock, how long it really kept each inference; `kept` asks for that.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

TLS_FOLDER = Path(__file__).parent / "tls"
FAULTS = ("none", "error", "silent")


class Service(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Serves one model, `delay`: FP32 input x, batches of up to 64."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.count = 0
        self.kept: list[tuple[int, int]] = []  # for how long, and since when

    def ServerMetadata(self, request: Any, context: Any) -> Any:
        return pb.ServerMetadataResponse(name="fake", extensions=[json.dumps(self.kept)])

    def ModelMetadata(self, request: Any, context: Any) -> Any:
        if request.name != "delay":
            context.abort(grpc.StatusCode.NOT_FOUND, f"unknown model '{request.name}'")
        answer = pb.ModelMetadataResponse(name="delay")
        answer.inputs.add(name="x", datatype="FP32", shape=[-1, self.options.size])
        answer.outputs.add(name="y", datatype="FP32", shape=[-1, self.options.answer_size])
        return answer

    def ModelConfig(self, request: Any, context: Any) -> Any:
        answer = pb.ModelConfigResponse()
        answer.config.name = "delay"
        answer.config.max_batch_size = 64
        return answer

    def ModelStatistics(self, request: Any, context: Any) -> Any:
        answer = pb.ModelStatisticsResponse()
        model = answer.model_stats.add(name="delay", version="1", inference_count=self.count)
        model.execution_count = self.count
        model.inference_stats.success.count = self.count
        model.inference_stats.success.ns = self.count * 1_000_000
        return answer

    def ModelInfer(self, request: Any, context: Any) -> Any:
        arrived_ns = time.monotonic_ns()
        self.count += 1
        expected = request.inputs[0].shape[0] * self.options.size * 4
        if len(request.raw_input_contents[0]) != expected:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the tensor does not have its size")
        time.sleep(self.options.delay_ms / 1e3)
        if self.count > self.options.good_first:
            if self.options.fault == "error":
                context.abort(grpc.StatusCode.INTERNAL, "the model broke: 100 % of it, für immer")
            if self.options.fault == "silent":
                time.sleep(30)
        answer = pb.ModelInferResponse(model_name="delay", model_version="1")
        answer.outputs.add(name="y", datatype="FP32", shape=[1, self.options.answer_size])
        answer.raw_output_contents.append(b"\0" * (4 * self.options.answer_size))
        self.kept.append((time.monotonic_ns() - arrived_ns, arrived_ns))
        return answer


@contextmanager
def fake_grpc(*options: str) -> Iterator[str]:
    """Start a fake in its own process; yields its address."""
    command = [sys.executable, str(Path(__file__)), *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            scheme = "grpcs" if "--tls" in options else "grpc"
            yield f"{scheme}://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def kept(url: str, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return how long the fake kept each of the last `count` inferences, and their arrival, by its own clock."""
    scheme, address = url.split("://")
    address = address.replace("127.0.0.1", "localhost")  # the name in the certificate
    trusted = grpc.ssl_channel_credentials((TLS_FOLDER / "localhost-ca.pem").read_bytes())
    secure = scheme == "grpcs"
    with grpc.secure_channel(address, trusted) if secure else grpc.insecure_channel(address) as channel:
        answer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ServerMetadata(pb.ServerMetadataRequest())
    kept_ns, arrived_ns = np.array(json.loads(answer.extensions[0])[-count:], np.int64).T
    return kept_ns, arrived_ns


def add_port(server: grpc.Server, *, tls: bool, mutual: bool) -> int:
    address = "127.0.0.1:0"
    if not tls:
        return server.add_insecure_port(address)  # type: ignore[no-any-return]
    pem = (TLS_FOLDER / "localhost.pem").read_bytes()  # the key, and the certificate after it
    authority = (TLS_FOLDER / "localhost-ca.pem").read_bytes() if mutual else None
    credentials = grpc.ssl_server_credentials([(pem, pem)], authority, require_client_auth=mutual)
    return server.add_secure_port(address, credentials)  # type: ignore[no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--delay-ms", type=float, default=0.0)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--answer-size", type=int, default=2)
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--good-first", type=int, default=0)
    parser.add_argument("--most-calls", type=int, default=0, help="calls at a time on one connection")
    parser.add_argument("--connection-age-ms", type=int, default=0)
    parser.add_argument("--tls", action="store_true", help="with a certificate for the name localhost")
    parser.add_argument("--mutual", action="store_true", help="clients need a certificate: localhost.pem")
    options = parser.parse_args()
    with contextlib.suppress(PermissionError):  # keeps the delay exact on a busy machine, if permitted
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    settings = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    if options.most_calls:
        settings.append(("grpc.max_concurrent_streams", options.most_calls))
    if options.connection_age_ms:
        settings.append(("grpc.max_connection_age_ms", options.connection_age_ms))
    server = grpc.server(futures.ThreadPoolExecutor(32), options=settings)
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Service(options), server)
    print(add_port(server, tls=options.tls, mutual=options.mutual), flush=True)
    server.start()
    sys.stdin.read()
    server.stop(0)


if __name__ == "__main__":
    main()
