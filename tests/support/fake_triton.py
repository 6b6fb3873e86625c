"""A Triton of a few lines for the tests of the load generator: one thread, one epoll, exact delays.

`python fake_triton.py --delay-ms 5` prints its port and serves until its stdin closes. It answers every
inference after a fixed delay and writes down, by its own clock, how long it really kept each one.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import heapq
import json
import os
import random
import select
import socket
import ssl
import subprocess
import sys
import time
from array import array
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

TLS_FOLDER = Path(__file__).parent / "tls"  # a certificate of its own authority, and a key that opens nothing else
FAULTS = ("none", "error", "close", "silent", "redirect")


def refuse(connection: ssl.SSLSocket) -> None:
    """Close a connection whose handshake failed after the client has: unread data would reset it, unalerted."""
    with socket.socket(fileno=connection.detach()) as refused, contextlib.suppress(OSError):
        refused.settimeout(10)
        refused.shutdown(socket.SHUT_WR)
        while refused.recv(65536):
            pass


class Server:
    """Serves one model, `delay`: FP32 input x of the given size, batches of up to 64."""

    def __init__(self, options: Any) -> None:
        self.options = options
        self.listener = socket.create_server(("127.0.0.1", options.port), backlog=1024)
        if options.tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(TLS_FOLDER / "localhost.pem")
            if options.mutual:
                context.verify_mode = ssl.CERT_REQUIRED
                context.load_verify_locations(TLS_FOLDER / "localhost-ca.pem")
            if options.tls_1_2:
                context.maximum_version = ssl.TLSVersion.TLSv1_2
            self.listener = context.wrap_socket(self.listener, server_side=True, do_handshake_on_connect=False)
        self.listener.setblocking(False)
        self.epoll = select.epoll()
        self.epoll.register(self.listener.fileno(), select.EPOLLIN)
        self.epoll.register(sys.stdin.fileno(), select.EPOLLIN | select.EPOLLHUP)
        self.clients: dict[int, Client] = {}
        self.due: list[tuple[int, int, Client]] = []
        self.kept_ns: list[int] = []
        self.arrived_ns: list[int] = []
        self.busy_until_ns = 0
        self.infer_count = 0
        self.metadata_count = 0
        self.answer_body = answer_body(options.output_numbers)
        seed = options.exponential_seed
        self.random = None if seed is None else random.Random(seed)
        self.delays_ns = array("q", options.delays_ns.read_bytes() if options.delays_ns else b"")

    def serve(self) -> None:
        while True:
            wait = self.due[0][0] - time.monotonic_ns() if self.due else 1_000_000_000
            if wait > 0 and not select.select([self.epoll.fileno()], [], [], wait * 1e-9)[0]:
                wait = 0
            for fd, _ in self.epoll.poll(0):
                if fd == sys.stdin.fileno():
                    return
                if fd == self.listener.fileno():
                    self.accept()
                elif fd in self.clients:
                    self.clients[fd].read()
            now = time.monotonic_ns()
            while self.due and self.due[0][0] <= now:
                _, arrived, client = heapq.heappop(self.due)
                self.answer(client, arrived)
                now = time.monotonic_ns()

    def accept(self) -> None:
        try:
            connection, _ = self.listener.accept()
        except OSError:
            return
        if isinstance(connection, ssl.SSLSocket):
            try:
                connection.setblocking(True)
                connection.do_handshake()
            except OSError:
                refuse(connection)
                return
        else:
            connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.clients[connection.fileno()] = Client(self, connection)
        self.epoll.register(connection.fileno(), select.EPOLLIN)

    def drop(self, client: Client) -> None:
        if self.clients.pop(client.fd, None) is not None:
            self.epoll.unregister(client.fd)
            client.socket.close()

    def inference(self, client: Client) -> None:
        """Hold an inference for the delay; with one instance, after all earlier ones."""
        now = time.monotonic_ns()
        self.infer_count += 1
        self.arrived_ns.append(now)
        delay_ns = round(self.options.delay_ms * 1e6)
        if self.random is not None:
            delay_ns = round(self.random.expovariate(1 / delay_ns))
        if self.delays_ns:
            delay_ns = self.delays_ns[(self.infer_count - 1) % len(self.delays_ns)]
        if self.options.stall_at_s and self.infer_count == 1 + self.options.stall_after:
            time.sleep(self.options.stall_at_s)
        start = max(now, self.busy_until_ns) if self.options.one_at_a_time else now
        self.busy_until_ns = start + delay_ns
        if delay_ns == 0 and start == now:
            self.answer(client, now)
        else:
            heapq.heappush(self.due, (start + delay_ns, now, client))

    def answer(self, client: Client, arrived: int) -> None:
        if client.fd not in self.clients:
            return
        fault = self.options.fault if self.infer_count > self.options.good_first else "none"
        if fault != "silent":
            client.answer_inference(fault)
        self.kept_ns.append(time.monotonic_ns() - arrived)

    def document(self, path: str) -> dict[str, Any] | None:
        model = "/v2/models/delay"
        size = self.options.size
        if path == "/v2":
            return {"name": "fake", "version": "0", "extensions": []}
        if path == model:
            return {
                "name": "delay",
                "versions": ["1"],
                "platform": "fake",
                "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, size]}],
                "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, self.options.output_numbers]}],
            }
        if path == f"{model}/config":
            return {"name": "delay", "max_batch_size": 64, "input": [{"name": "x"}]}
        if path == f"{model}/stats":
            return {"model_stats": [self.statistics()]}
        if path == "/kept":
            return {"kept_ns": self.kept_ns, "arrived_ns": self.arrived_ns, "questions": self.metadata_count}
        return None

    def statistics(self) -> dict[str, Any]:
        count, total = len(self.kept_ns), sum(self.kept_ns)
        stage = {"count": count, "ns": 0}
        infer = {"count": count, "ns": total}
        return {
            "version": "1",
            "inference_count": count,
            "execution_count": count,
            "inference_stats": {
                "success": infer, "fail": stage, "queue": stage, "compute_input": stage,
                "compute_infer": infer, "compute_output": stage,
            },
            "batch_stats": [
                {"batch_size": 1, "compute_input": stage, "compute_infer": infer, "compute_output": stage}
            ],
        }  # fmt: skip


def answer_body(numbers: int, model: str = "delay") -> tuple[bytes, int]:
    """Return the body of an inference, and the length of its JSON."""
    size = 4 * numbers
    output = {
        "name": "y",
        "datatype": "FP32",
        "shape": [1, numbers],
        "parameters": {"binary_data_size": size},
    }
    text = json.dumps({"model_name": model, "model_version": "1", "outputs": [output]}).encode()
    return text + b"\0" * size, len(text)


class Client:
    """One connection: the bytes read of the request, and its expected length."""

    def __init__(self, server: Server, connection: socket.socket) -> None:
        self.server = server
        self.socket = connection
        self.fd = connection.fileno()
        self.missing = 0  # bytes of an inference body that have not arrived
        self.head = b""

    def read(self) -> None:
        try:
            data = self.socket.recv(1 << 20)
        except (BlockingIOError, ssl.SSLWantReadError):
            return
        except OSError:
            data = b""
        if not data:
            self.server.drop(self)
            return
        if self.missing:
            self.missing -= len(data)
            if self.missing <= 0:
                self.missing = 0
                self.server.inference(self)
            return
        self.head += data
        end = self.head.find(b"\r\n\r\n")
        if end < 0:
            return
        head, rest, self.head = self.head[:end], self.head[end + 4 :], b""
        method, path, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
        if method == "GET":
            self.answer_document(path)
            return
        if path != "/v2/models/delay/infer":
            self.send(b"404 Not Found", b'{"error":"unknown model"}')
            return
        at = head.index(b"\r\nContent-Length:") + 17
        self.missing = int(head[at:].split(b"\r\n")[0]) - len(rest)
        if self.missing <= 0:
            self.missing = 0
            self.server.inference(self)

    def answer_document(self, path: str) -> None:
        document = self.server.document(path)
        self.server.metadata_count += path == "/v2/models/delay"
        every = self.server.options.busy_every
        if every and path == "/v2/models/delay" and self.server.metadata_count % every == 0:
            self.send(b"503 Service Unavailable", b'{"error":"busy for a moment"}')
        elif document is None:
            self.send(b"404 Not Found", json.dumps({"error": f"unknown {path}"}).encode())
        else:
            self.send(b"200 OK", json.dumps(document).encode())

    def answer_inference(self, fault: str) -> None:
        body, json_bytes = self.server.answer_body
        head = (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"
            b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n" % (json_bytes, len(body))
        )
        answers = {
            "none": head + body,
            "error": b"HTTP/1.1 500 Broken\r\nContent-Length: 27\r\n\r\n" + b'{"error":"the model broke"}',
            "redirect": b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
            "close": b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf of it",
        }
        self.write(answers[fault])
        if fault == "close":
            self.server.drop(self)

    def send(self, status: bytes, body: bytes) -> None:
        self.write(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))

    def write(self, data: bytes) -> None:
        try:
            while data:
                try:
                    data = data[self.socket.send(data) :]
                except (BlockingIOError, ssl.SSLWantWriteError):
                    select.select([], [self.fd], [])
        except OSError:
            self.server.drop(self)


@dataclass(frozen=True, kw_only=True)
class FakeTriton:
    """A running fake, for a test."""

    url: str
    process: subprocess.Popen[bytes]

    def document(self, path: str) -> Any:
        import requests  # not in the server's own process, which has to start at once

        url = self.url.replace("127.0.0.1", "localhost")  # the name in the certificate
        answer = requests.get(url + path, timeout=10, verify=str(TLS_FOLDER / "localhost-ca.pem"))
        answer.raise_for_status()
        return answer.json()

    def kept(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return how long it kept each of the last `count` inferences, and their arrival, by its own clock."""
        import numpy as np

        known = self.document("/kept")
        kept_ns, arrived_ns = (np.array(known[name], np.int64) for name in ("kept_ns", "arrived_ns"))
        return kept_ns[-count:], arrived_ns[-count:]


@contextmanager
def fake_triton(*options: str, scheme: str = "http") -> Iterator[FakeTriton]:
    """Start a fake in its own process; see `main` for its options."""
    command = [sys.executable, str(Path(__file__)), *options]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        port = int(process.stdout.readline())
        yield FakeTriton(url=f"{scheme}://127.0.0.1:{port}", process=process)
    finally:
        process.stdin.close()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--delay-ms", type=float, default=0.0)
    parser.add_argument("--size", type=int, default=256, help="elements of the input")
    parser.add_argument("--output-numbers", type=int, default=2, help="elements of the output")
    parser.add_argument("--one-at-a-time", action="store_true", help="requests queue: M/D/1 instead of M/D/inf")
    parser.add_argument("--exponential-seed", type=int, help="delays are drawn, with delay-ms as their mean")
    parser.add_argument("--delays-ns", type=Path, help="64-bit integers: the delays in turn, round and round")
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--good-first", type=int, default=0, help="so many inferences are answered well")
    parser.add_argument("--stall-at-s", type=float, default=0.0, help="sleep so long, once")
    parser.add_argument("--stall-after", type=int, default=0, help="after so many inferences")
    parser.add_argument("--busy-every", type=int, default=0, help="each such question for metadata gets a 503")
    parser.add_argument("--tls", action="store_true", help="with a certificate for the name localhost")
    parser.add_argument("--mutual", action="store_true", help="clients need a certificate: localhost.pem")
    parser.add_argument("--tls-1-2", action="store_true", help="no later version")
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(29, 1, 0, 0, 0)  # PR_SET_TIMERSLACK: waits end within a microsecond
    with contextlib.suppress(PermissionError):  # keeps the delay exact on a busy machine, if permitted
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    server = Server(options)
    print(server.listener.getsockname()[1], flush=True)
    server.serve()


if __name__ == "__main__":
    main()
