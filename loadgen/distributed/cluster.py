"""Locust's master and worker for load tests: connections with keys, and known messages only."""

from __future__ import annotations

from collections.abc import Callable

from locust import __version__
from locust.env import Environment
from locust.rpc import Message
from locust.runners import CONNECT_RETRY_COUNT, CONNECT_TIMEOUT, MasterRunner, WorkerRunner

from loadgen.distributed.encrypted_sockets import MasterSocket, WorkerSocket, sockets_for_locust
from loadgen.distributed.message_schema import FROM_MASTER, FROM_WORKER, is_dropped, problem_of
from loadgen.distributed.secret import ClusterKeys
from loadgen.errors import WorkerDied

OnWrong = Callable[[str, str], None]
"""Takes the sender of a message that does not fit its schema, and the reason."""

_LOOK_PERIOD_S = 0.1


class WrongSecret(ConnectionError):
    """The process at the master's address has another secret, or none."""


class ClusterMaster(MasterRunner):
    """Locust's master for workers that have the secret. Raises RPCError if the port is taken."""

    def __init__(
        self, environment: Environment, host: str, port: int, keys: ClusterKeys, *, on_wrong: OnWrong
    ) -> None:
        self._keys = keys
        self._on_wrong = on_wrong
        with sockets_for_locust(Server=self._socket):
            super().__init__(environment, host, port)

    def handle_message(self, client_id: str, msg: Message) -> None:
        """Handle a message as Locust does if it fits its schema."""
        if is_dropped(msg.type):
            return
        problem = problem_of(msg.type, msg.data, FROM_WORKER)
        if problem is None:
            super().handle_message(client_id, msg)
        else:
            self._on_wrong(client_id, problem)

    def reset_connection(self) -> None:
        """Make a new socket, with keys."""
        with sockets_for_locust(Server=self._socket):
            super().reset_connection()

    def _socket(self, host: str, port: int) -> MasterSocket:
        return MasterSocket(host, port, self._keys)


class ClusterWorker(WorkerRunner):
    """Locust's worker for a master that has the secret.

    Raises ConnectionError if there is no master, and WrongSecret.
    """

    def __init__(self, environment: Environment, host: str, port: int, keys: ClusterKeys) -> None:
        self.on_wrong: OnWrong | None = None
        self._keys = keys
        with sockets_for_locust(Client=self._socket):
            super().__init__(environment, host, port)

    def connect_to_master(self) -> None:
        """Connect as Locust does. Raises WrongSecret at once if the secret is refused."""
        for _ in range(CONNECT_RETRY_COUNT + 1):
            ready = Message("client_ready", __version__, self.client_id)  # type: ignore[no-untyped-call]
            self.client.send(ready)
            for _ in range(round(CONNECT_TIMEOUT / _LOOK_PERIOD_S)):
                if self.connection_event.wait(timeout=_LOOK_PERIOD_S):
                    self.connected = True
                    return
                if self._current.refused:
                    raise WrongSecret
        raise ConnectionError

    def handle_message(self, msg: Message) -> None:
        """Handle a message as Locust does if it fits its schema."""
        problem = problem_of(msg.type, msg.data, FROM_MASTER)
        if problem is None:
            super().handle_message(msg)
        elif self.on_wrong is not None:
            self.on_wrong("the master", problem)

    def reset_connection(self) -> None:
        """Make a new socket, with keys."""
        with sockets_for_locust(Client=self._socket):
            super().reset_connection()

    def _socket(self, host: str, port: int, identity: str) -> WorkerSocket:
        self._current = WorkerSocket(host, port, identity, self._keys)
        return self._current


def wrong_message(sender: str, problem: str) -> WorkerDied:
    """Return the error for a message that does not fit its schema."""
    return WorkerDied(
        f"{sender} sent a message that does not fit: {problem}.\nUse the same version of tritune on all machines."
    )
