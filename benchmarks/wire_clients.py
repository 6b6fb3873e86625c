"""Compare the CPU time of HTTP and gRPC clients per inference request.

    pip install h2
    python benchmarks/wire_clients.py [--requests 2000] [--repeats 9] [--output FOLDER]

Starts the embedded Triton with a model that ignores its 1 kB input. Each client is a process and sends the same
input on one connection, one request after the other, and reports its user and system CPU time per request. The
clients take turns. Prints the median of each client's runs and its ratio to ours of the same protocol; `--output`
writes all runs, the machine and the versions to FOLDER/wire-clients.json.

"on a socket" is the least that a library can cost: a blocking socket, a request prepared once, and no check but of
the status.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import socket
import statistics
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from load_generator import MODEL, triton

from loadgen.sending.prepared import wire_of
from loadgen.spec.plan import Payload
from loadgen.spec.target import Target
from loadgen.status import OK
from loadgen.traffic.model_info import ModelInfo
from loadgen.traffic.payloads import Tensors, grpc_request, http_request, request_tensors
from loadgen.wire.poller import Poller
from loadgen.wire.questions import read_model_info

FLOATS = 250
WARM_UP = 200  # requests of a run that are not measured
HOST = "127.0.0.1"
Call = Callable[[], object]
LIBRARIES = ("h2", "hpack", "httptools", "geventhttpclient", "grpcio", "tritonclient")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000, help="measured per run")
    parser.add_argument("--repeats", type=int, default=9, help="runs of each client")
    parser.add_argument("--output", type=Path, help="folder for all runs as JSON")
    parser.add_argument("--client", help=argparse.SUPPRESS)
    parser.add_argument("--ports", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        print(cpu_us_per_request(options.client, *options.ports, options.requests))  # type: ignore[call-arg]
    else:
        compare(options.requests, options.repeats, options.output)


def compare(requests: int, repeats: int, output: Path | None) -> None:
    """Run all clients in turn against one server, and print a line per client."""
    runs: dict[str, list[float]] = {client: [] for client in CLIENTS}
    with triton(FLOATS) as endpoint:
        ports = (str(endpoint.http_port), str(endpoint.grpc_port))
        for _ in range(repeats):
            for client, costs in runs.items():
                command = [sys.executable, __file__, "--client", client, "--requests", str(requests), "--ports"]
                costs.append(float(subprocess.run([*command, *ports], check=True, stdout=subprocess.PIPE).stdout))
    print("| client | CPU us per request | lowest to highest | ratio to ours |")
    print("|---|---|---|---|")
    for client, costs in runs.items():
        mine = statistics.median(runs[f"{client.partition(':')[0]}: ours"])
        median = statistics.median(costs)
        print(f"| {client} | {median:.0f} | {min(costs):.0f} to {max(costs):.0f} | {median / mine:.2f} |")
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        record = {
            "machine": f"{os.cpu_count()} cores, {cpu_model()}, {platform.system()} {platform.release()}",
            "versions": {"python": platform.python_version()} | {name: version(name) for name in LIBRARIES},
            "requests_per_run": requests,
            "cpu_us_per_request": runs,
        }
        (output / "wire-clients.json").write_text(json.dumps(record, indent=1) + "\n")


def cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown CPU")


def cpu_us_per_request(client: str, http_port: int, grpc_port: int, requests: int) -> float:
    http = Target(url=f"http://{HOST}:{http_port}", model_name=MODEL)
    info = read_model_info(http)
    target = http if client.startswith("HTTP") else Target(url=f"grpc://{HOST}:{grpc_port}", model_name=MODEL)
    call = CLIENTS[client](target, info, request_tensors(info, Payload(seed=1))[0])
    for _ in range(WARM_UP):
        call()
    before = resource.getrusage(resource.RUSAGE_SELF)
    for _ in range(requests):
        call()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / requests * 1e6


def ours(target: Target, info: ModelInfo, tensors: Tensors) -> Call:
    poller, ended = Poller(), list[int]()
    wire = wire_of(target, info, [tensors], poller, lambda _row, outcome, _arrived_ns: ended.append(outcome))
    wire.open(1)

    def call() -> None:
        wire.send(0)
        while not ended:
            for fd, events in poller.wait(1_000_000_000):
                wire.handle(fd, events)
        assert ended.pop() == OK, wire.error_example

    return call


def httptools_on_a_socket(target: Target, info: ModelInfo, tensors: Tensors) -> Call:
    import httptools

    class Ended:
        whole = False

        def on_message_complete(self) -> None:
            self.whole = True

    request, connection, ended = http_request(target, info, tensors), connected(target), Ended()
    parser = httptools.HttpResponseParser(ended)

    def call() -> None:
        connection.sendall(request)
        while not ended.whole:
            parser.feed_data(connection.recv(65_536))
        ended.whole = False
        assert parser.get_status_code() == 200

    return call


def geventhttpclient(target: Target, info: ModelInfo, tensors: Tensors) -> Call:
    from geventhttpclient import HTTPClient

    head, _, body = http_request(target, info, tensors).partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    client, path = HTTPClient(target.host, target.port, concurrency=1), first.split(" ")[1]

    def call() -> None:
        response = client.post(path, body=body, headers=headers)
        assert response.status_code == 200
        response.read()

    return call


def tritonclient_http(target: Target, _: ModelInfo, tensors: Tensors) -> Call:
    from tritonclient import http

    client = http.InferenceServerClient(f"{target.host}:{target.port}")
    return lambda: client.infer(MODEL, triton_inputs(http, tensors))


def tritonclient_grpc(target: Target, _: ModelInfo, tensors: Tensors) -> Call:
    from tritonclient import grpc

    client = grpc.InferenceServerClient(f"{target.host}:{target.port}")
    return lambda: client.infer(MODEL, triton_inputs(grpc, tensors))


def triton_inputs(module: Any, tensors: Tensors) -> list[object]:
    value = module.InferInput("x", [1, FLOATS], "FP32")
    value.set_data_from_numpy(tensors["x"].reshape(1, FLOATS))
    return [value]


def grpcio(target: Target, info: ModelInfo, tensors: Tensors) -> Call:
    import grpc

    channel, request = grpc.insecure_channel(f"{target.host}:{target.port}"), grpc_request(target, info, tensors)
    infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")  # request and response are bytes
    return lambda: infer(request)


def h2_on_a_socket(target: Target, info: ModelInfo, tensors: Tensors) -> Call:
    from h2.config import H2Configuration
    from h2.connection import H2Connection
    from h2.events import DataReceived, StreamEnded, TrailersReceived

    message = grpc_request(target, info, tensors)
    message = b"\0" + len(message).to_bytes(4, "big") + message
    headers = [
        (":method", "POST"), (":scheme", "http"), (":path", "/inference.GRPCInferenceService/ModelInfer"),
        (":authority", f"{target.host}:{target.port}"), ("te", "trailers"), ("content-type", "application/grpc"),
    ]  # fmt: skip
    connection = connected(target)
    h2 = H2Connection(H2Configuration(client_side=True, header_encoding=None))
    h2.initiate_connection()
    connection.sendall(h2.data_to_send())

    def call() -> None:
        stream = h2.get_next_available_stream_id()
        h2.send_headers(stream, headers)
        h2.send_data(stream, message, end_stream=True)
        connection.sendall(h2.data_to_send())
        ended = False
        while not ended:
            for event in h2.receive_data(connection.recv(65_536)):
                if isinstance(event, DataReceived):
                    h2.acknowledge_received_data(event.flow_controlled_length, stream)
                elif isinstance(event, TrailersReceived):
                    assert dict(event.headers)[b"grpc-status"] == b"0"
                ended = ended or isinstance(event, StreamEnded)
            if answer := h2.data_to_send():
                connection.sendall(answer)

    return call


def connected(target: Target) -> socket.socket:
    connection = socket.create_connection((target.host, target.port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


CLIENTS: dict[str, Callable[[Target, ModelInfo, Tensors], Call]] = {
    "HTTP: ours": ours,
    "HTTP: httptools on a socket": httptools_on_a_socket,
    "HTTP: geventhttpclient": geventhttpclient,
    "HTTP: tritonclient": tritonclient_http,
    "gRPC: ours": ours,
    "gRPC: h2 on a socket": h2_on_a_socket,
    "gRPC: grpcio": grpcio,
    "gRPC: tritonclient": tritonclient_grpc,
}


if __name__ == "__main__":
    main()
