"""A load test that several machines send: the master gives out shards and merges the logs."""

from __future__ import annotations

import itertools
import logging
import os
import socket
from collections.abc import Callable
from typing import Any, Self

import gevent
from locust.env import Environment
from locust.exception import RPCError
from locust.runners import STATE_MISSING, MasterRunner
from pydantic import ValidationError

from loadgen.distributed.messages import MESSAGE, Order, Report, pieces_of, refusal
from loadgen.distributed.remote_workers import RemoteWorkers
from loadgen.distributed.secret import cluster_secret
from loadgen.distributed.sockets import encrypt_locust, master_options
from loadgen.errors import BadInput, PlanError, WorkerDied
from loadgen.processes import Silence
from loadgen.sending.generator import Generator
from loadgen.sending.plan_run import LoadJob
from loadgen.spec.plan import LoadPlan


class Master(MasterRunner):
    """Locust's master for workers that have the secret. Raises RPCError if the port is taken."""

    def __init__(self, host: str, port: int, secret: bytes) -> None:
        self._numbers = itertools.count(1)
        self._reports: dict[int, Report] = {}
        encrypt_locust(master_options(secret), secret)
        super().__init__(Environment(user_classes=[]), host, port)

    @property
    def connected(self) -> list[str]:
        """The workers that are connected now, in the order in which they came."""
        return [node.id for node in self.clients.all if node.state != STATE_MISSING]

    def ask(self, worker: str, order: Order, within_s: float) -> Report | None:
        """Send an order, and return the report on it; None if the worker is stopped, gone, or late."""
        order.number = next(self._numbers)
        for piece in pieces_of(order):
            self.send_message(MESSAGE, piece, worker)  # type: ignore[arg-type]
        silence = Silence(lambda: worker in self.connected)
        for _ in range(round(within_s * 1e3)):  # by looks: a pause of this process is none of the worker's
            report = self._reports.pop(order.number, None) or self._reports.get(0)
            if report is not None or silence.too_long():
                return report
            gevent.sleep(0.001)
        return None

    def handle_message(self, client_id: str, msg: Any) -> None:
        """Keep a report; handle Locust's own messages as Locust does."""
        if msg.type != MESSAGE:
            super().handle_message(client_id, msg)
            return
        try:
            report = Report.model_validate_json(msg.data)
        except ValidationError as error:
            report = refusal(f"the worker {client_id}", error)
        self._reports[report.number] = report


class DistributedGenerator(Generator):
    """Workers on other machines as one load generator, from `with` to the end of its block.

    Worker k of n sends every n-th request of the plan's schedule from the k-th on, so that together they send
    exactly the plan. Their clocks are compared before each run, and each one starts at a time of its own clock.
    Raises BadInput without a secret that the address needs.
    """

    def __init__(self, *, host: str, port: int, workers: int) -> None:
        self.port = port
        self.count = workers
        self._host = host
        self._secret = cluster_secret(host, os.environ)

    def __enter__(self) -> Self:
        logging.getLogger("locust").setLevel(logging.CRITICAL)
        try:
            # Locust would end the process if the port is taken.
            socket.create_server(("" if self._host == "*" else self._host, self.port)).close()
            self._master = Master(self._host, self.port, self._secret)
        except (OSError, OverflowError, RPCError) as error:
            raise BadInput(
                f"The master cannot listen on port {self.port} of {self._host}: {error}.",
                "Choose another --port, or --bind.",
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        self._master.quit()  # workers end with their master

    def wait_for_workers(self, stop: Callable[[], bool]) -> bool:
        """Wait until all expected workers are connected; False if `stop` returns True before."""
        while len(self._master.connected) < self.count:
            if stop():
                return False
            gevent.sleep(0.1)
        return True

    def workers_for(self, job: LoadJob) -> RemoteWorkers:
        """Return the workers as a group. One that is lost during the load is a problem of the measurement.

        Raises PlanError for a closed loop, and WorkerDied if there are fewer workers than expected.
        """
        if not isinstance(job.plan, LoadPlan):
            raise PlanError("a closed loop is not divided between machines.\nUse --rate, or one machine.")
        workers = self._master.connected[: self.count]
        if len(workers) < self.count:
            raise WorkerDied(f"{len(workers)} of {self.count} workers are left.\nStart the others again.")
        return RemoteWorkers(ask=self._master.ask, workers=workers, job=job)
