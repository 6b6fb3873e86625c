"""Locust's master and worker for load tests: encrypted connections with keys, and one message of ours each way.

The connections use ZeroMQ's CURVE: a worker knows the master's public key, the master knows the workers', and both
keys come from the secret of the test. A peer without it gets no data from us, and none of its data is read.
"""

from __future__ import annotations

import hmac
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import gevent
import zmq.green as zmq
from locust import __version__, runners
from locust.env import Environment
from locust.exception import RPCError, RPCReceiveError
from locust.rpc import Message, rpc
from locust.runners import CONNECT_RETRY_COUNT, CONNECT_TIMEOUT, MasterRunner, WorkerRunner
from zmq import curve_public
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from loadgen.distributed.messages import Order, Report, refusal
from loadgen.distributed.secret import ClusterKeys

_FRAME_BYTES_MAX = 2_000_000  # what a stranger can make us take; our messages travel in frames of half of it
_HANDSHAKE_MS = 3_000
_DOMAIN = b"tritune"
_REFUSALS = 3  # in a row, without a reason: a single one may come from a master that is just ending
_HANDSHAKE_FAILURES = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


class MasterSocket(rpc.BaseSocket):
    """Replaces Locust's `rpc.Server`. Raises RPCError if the port is taken."""

    def __init__(self, keys: ClusterKeys, host: str, port: int) -> None:
        super().__init__(zmq.ROUTER, self.ipv4_only(host, port))  # type: ignore[no-untyped-call]
        _set(self.socket, secret=keys.master)
        self.socket.setsockopt(zmq.CURVE_SERVER, 1)
        self.socket.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN)
        self.socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        self._door = gevent.spawn(_admit, self.socket.context, _public(keys.worker))
        gevent.sleep(0)
        try:
            self.socket.bind(f"tcp://{host}:{port}")
        except zmq.ZMQError as error:
            raise RPCError(f"Socket bind failure: {error}") from error
        self.port = port

    def send_to_client(self, msg: Message) -> None:
        """Send a message as Locust does."""
        with _as_rpc_errors():
            self.socket.send_multipart([msg.node_id.encode(), *_frames(msg)])

    def recv_from_client(self) -> tuple[str, Message]:
        """Return a message as Locust does, from any bytes."""
        with _as_rpc_errors():
            sender, *frames = self.socket.recv_multipart()
            return sender.decode(), Message.unserialize(b"".join(frames))  # type: ignore[no-untyped-call]

    def close(self, linger: int | None = None) -> None:
        """Close the connections, and admit no peer any more."""
        self._door.kill()
        super().close(linger=linger)  # type: ignore[no-untyped-call]


class WorkerSocket(rpc.BaseSocket):
    """Replaces Locust's `rpc.Client`."""

    def __init__(self, keys: ClusterKeys, host: str, port: int, identity: str) -> None:
        super().__init__(zmq.DEALER, self.ipv4_only(host, port))  # type: ignore[no-untyped-call]
        _set(self.socket, secret=keys.worker)
        self.socket.setsockopt(zmq.CURVE_SERVERKEY, _public(keys.master))
        self.socket.setsockopt(zmq.IDENTITY, identity.encode())
        self._refusals = 0
        events = self.socket.get_monitor_socket(_HANDSHAKE_FAILURES | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._observer = gevent.spawn(self._observe, events)
        self.socket.connect(f"tcp://{host}:{port}")

    @property
    def refused(self) -> bool:
        """True if the peer has no key of ours, or does not know this worker's."""
        return self._refusals >= _REFUSALS

    def send(self, msg: Message) -> None:
        """Send a message as Locust does."""
        with _as_rpc_errors():
            self.socket.send_multipart(_frames(msg), zmq.NOBLOCK)

    def recv(self) -> Message:
        """Return a message as Locust does, from any bytes."""
        with _as_rpc_errors():
            frames = self.socket.recv_multipart()
            return Message.unserialize(b"".join(frames))  # type: ignore[no-untyped-call,no-any-return]

    def close(self, linger: int | None = None) -> None:
        """Close the connection."""
        self._observer.kill()
        self.socket.disable_monitor()
        super().close(linger=linger)  # type: ignore[no-untyped-call]

    def _observe(self, events: Any) -> None:
        while True:
            event = recv_monitor_message(events)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._refusals = 0
            elif event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
                self._refusals += 1
            else:
                self._refusals = _REFUSALS  # ZeroMQ does not try again after these


def use_encrypted_sockets(keys: ClusterKeys) -> None:
    """Let Locust's runners in this process make these sockets; they have no parameter for it."""
    module: Any = runners
    module.rpc = SimpleNamespace(Server=partial(MasterSocket, keys), Client=partial(WorkerSocket, keys))


def _set(socket: Any, *, secret: bytes) -> None:
    socket.setsockopt(zmq.CURVE_SECRETKEY, z85.encode(secret))
    socket.setsockopt(zmq.CURVE_PUBLICKEY, _public(secret))
    socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
    socket.setsockopt(zmq.MAXMSGSIZE, _FRAME_BYTES_MAX)


def _public(secret: bytes) -> bytes:
    return curve_public(z85.encode(secret))


def _admit(context: Any, worker: bytes) -> None:
    """Answer ZeroMQ's questions about peers (RFC 27): only those with the workers' key are admitted."""
    with context.socket(zmq.REP) as door:
        door.linger = 0
        door.bind("inproc://zeromq.zap.01")
        while True:
            version, number, _, _, _, mechanism, *credentials = door.recv_multipart()
            known = mechanism == b"CURVE" and hmac.compare_digest(credentials[0], z85.decode(worker))
            status = (b"200", b"OK") if known else (b"400", b"unknown key")
            door.send_multipart([version, number, *status, b"", b""])


def _frames(message: Message) -> list[bytes]:
    data, step = message.serialize(), _FRAME_BYTES_MAX // 2  # type: ignore[no-untyped-call]
    return [data[at : at + step] for at in range(0, len(data), step)]


@contextmanager
def _as_rpc_errors() -> Iterator[None]:
    """Turn all errors into those that Locust expects: RPCReceiveError if it cannot decode the bytes."""
    try:
        yield
    except zmq.ZMQError as error:
        raise RPCError(f"{error}") from error
    except Exception as error:
        raise RPCReceiveError(f"{type(error).__name__}: not a message", addr=None) from error


ORDER, REPORT = "tritune_order", "tritune_report"

_FROM_WORKER = ("client_ready", "heartbeat", "quit")
_FROM_MASTER = ("ack", "heartbeat", "quit", "reconnect")
"""Messages that Locust handles. All others are dropped, such as statistics that are not used here."""

_LOOK_PERIOD_S = 0.1


class WrongSecret(ConnectionError):
    """The process at the master's address has another secret, or none."""


class ClusterMaster(MasterRunner):
    """Locust's master for workers that have the secret. Raises RPCError if the port is taken."""

    def __init__(self, host: str, port: int, keys: ClusterKeys) -> None:
        self._reports: dict[str, deque[Report]] = defaultdict(deque)
        use_encrypted_sockets(keys)
        super().__init__(Environment(user_classes=[]), host, port)

    @property
    def connected(self) -> list[str]:
        """The workers that are connected now, in the order in which they came."""
        return [node.id for node in self.clients.all if node.state != "missing"]

    def give(self, worker: str, order: Order) -> None:
        """Send an order to a worker."""
        self.server.send_to_client(Message(ORDER, order.model_dump_json(), worker))  # type: ignore[no-untyped-call]

    def take(self, worker: str) -> Report | None:
        """Return the oldest report of a worker not taken yet; a failure for a message that does not fit."""
        reports = self._reports[worker]
        return reports.popleft() if reports else None

    def handle_message(self, client_id: str, msg: Message) -> None:
        """Keep a report; handle Locust's own messages as Locust does."""
        try:
            if msg.type == REPORT:
                self._reports[client_id].append(Report.model_validate_json(msg.data))
            elif msg.type in _FROM_WORKER:
                super().handle_message(client_id, msg)
        except Exception as error:  # Locust would end its loop
            self._reports[client_id].append(refusal(f"the worker {client_id}", error))


class ClusterWorker(WorkerRunner):
    """Locust's worker for a master that has the secret.

    `on_order` gets the orders that come after it is set. Raises ConnectionError without a master, and WrongSecret.
    """

    client: Any  # a WorkerSocket

    def __init__(self, host: str, port: int, keys: ClusterKeys) -> None:
        self.on_order: Callable[[Order], object] | None = None
        use_encrypted_sockets(keys)
        super().__init__(Environment(user_classes=[]), host, port)

    def connect_to_master(self) -> None:
        """Connect as Locust does. Raises WrongSecret at once if the secret is refused."""
        for _ in range(CONNECT_RETRY_COUNT + 1):
            ready = Message("client_ready", __version__, self.client_id)  # type: ignore[no-untyped-call]
            self.client.send(ready)
            for _ in range(round(CONNECT_TIMEOUT / _LOOK_PERIOD_S)):
                if self.connection_event.wait(timeout=_LOOK_PERIOD_S):
                    self.connected = True
                    return
                if self.client.refused:
                    raise WrongSecret
        raise ConnectionError

    def report(self, report: Report) -> None:
        """Send a report to the master."""
        self.client.send(Message(REPORT, report.model_dump_json(), self.client_id))  # type: ignore[no-untyped-call]

    def handle_message(self, msg: Message) -> None:
        """Pass an order on; handle Locust's own messages as Locust does."""
        try:
            if msg.type in _FROM_MASTER:
                super().handle_message(msg)
            elif msg.type == ORDER and self.on_order is not None:
                self.on_order(Order.model_validate_json(msg.data))
        except Exception as error:  # Locust would end its loop
            self.report(refusal("the master", error))
