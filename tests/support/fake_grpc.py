"""A Triton over gRPC for the tests of the load generator, on grpcio: an HTTP/2 that is not ours.

`python fake_grpc.py --delay-ms 5` prints its port and serves until its stdin closes.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path

import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

FAULTS = ("none", "error", "silent")


class Service(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Serves one model, `delay`: FP32 input x, batches of up to 64."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.count = 0

    def ModelMetadata(self, request, context):
        if request.name != "delay":
            context.abort(grpc.StatusCode.NOT_FOUND, f"unknown model '{request.name}'")
        answer = pb.ModelMetadataResponse(name="delay")
        answer.inputs.add(name="x", datatype="FP32", shape=[-1, self.options.size])
        answer.outputs.add(name="y", datatype="FP32", shape=[-1, self.options.answer_size])
        return answer

    def ModelConfig(self, request, context):
        answer = pb.ModelConfigResponse()
        answer.config.name = "delay"
        answer.config.max_batch_size = 64
        return answer

    def ModelStatistics(self, request, context):
        answer = pb.ModelStatisticsResponse()
        model = answer.model_stats.add(name="delay", version="1", inference_count=self.count)
        model.execution_count = self.count
        model.inference_stats.success.count = self.count
        model.inference_stats.success.ns = self.count * 1_000_000
        return answer

    def ModelInfer(self, request, context):
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
        return answer


@contextmanager
def fake_grpc(*options: str) -> Iterator[str]:
    """Start a fake in a process of its own; its address."""
    command = [sys.executable, str(Path(__file__)), *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield f"grpc://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--delay-ms", type=float, default=0.0)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--answer-size", type=int, default=2)
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--good-first", type=int, default=0)
    parser.add_argument("--most-calls", type=int, default=0, help="calls at a time on one connection")
    parser.add_argument("--connection-age-ms", type=int, default=0)
    options = parser.parse_args()
    settings = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    if options.most_calls:
        settings.append(("grpc.max_concurrent_streams", options.most_calls))
    if options.connection_age_ms:
        settings.append(("grpc.max_connection_age_ms", options.connection_age_ms))
    server = grpc.server(futures.ThreadPoolExecutor(32), options=settings)
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Service(options), server)
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    sys.stdin.read()
    server.stop(0)


if __name__ == "__main__":
    main()
