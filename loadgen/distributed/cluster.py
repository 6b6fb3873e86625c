"""Locust's master and worker for load tests: connections with keys, and one message of ours in each direction."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

from locust import __version__
from locust.env import Environment
from locust.rpc import Message
from locust.runners import CONNECT_RETRY_COUNT, CONNECT_TIMEOUT, MasterRunner, WorkerRunner

from loadgen.distributed.encrypted_sockets import use_encrypted_sockets
from loadgen.distributed.messages import Order, Report, refusal
from loadgen.distributed.secret import ClusterKeys

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
