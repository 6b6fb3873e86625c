"""A load test that several machines send: the master gives out shards and merges the logs."""

from __future__ import annotations

import logging
import socket
import time
from collections import defaultdict, deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import gevent
from locust.env import Environment
from locust.exception import RPCError

from loadgen.distributed import messages as kinds
from loadgen.distributed.cluster import ClusterMaster, wrong_message
from loadgen.distributed.messages import Message
from loadgen.distributed.run import RemoteWorkers
from loadgen.distributed.secret import keys_from_secret
from loadgen.errors import BadInput, PlanError, WorkerDied
from loadgen.processes import Silence
from loadgen.sending.load_process import error_from
from loadgen.sending.plan_run import LoadJob, LoadRun, PlanRun, Watch
from loadgen.spec.plan import ClosedLoopPlan, LoadPlan, Payload
from loadgen.spec.target import Target


class DistributedGenerator:
    """Workers on other machines as one load generator, from `with` to the end of its block.

    Worker k of n sends every n-th request of the plan's schedule from the k-th on, so that together they send
    exactly the plan. Their clocks are compared before each run, and each one starts at a time of its own clock.
    """

    def __init__(self, *, host: str, port: int, workers: int, secret: bytes) -> None:
        self._host = host
        self._port = port
        self._count = workers
        self._secret = secret
        self._master: ClusterMaster | None = None
        self._inbox: dict[tuple[str, str], deque[Message]] = defaultdict(deque)
        self._runs = 0

    def __enter__(self) -> Self:
        logging.getLogger("locust").setLevel(logging.CRITICAL)
        _check_free(self._host, self._port)
        try:
            self._master = ClusterMaster(
                Environment(user_classes=[]),
                self._host,
                self._port,
                keys_from_secret(self._secret),
                on_wrong=self._note_wrong,
            )
        except RPCError as error:
            raise _cannot_listen(self._host, self._port, error) from error
        for kind in (kinds.CLOCK, kinds.PREPARED, kinds.FAILED, kinds.ROWS, kinds.DONE, kinds.STATISTICS):
            self._master.register_message(kind, self._listener(kind))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Workers end with their master."""
        if self._master is not None:
            self._master.quit()
        self._master = None

    @property
    def connected(self) -> list[str]:
        """The connected workers in the order in which they came, at most as many as are expected."""
        assert self._master is not None
        return [node.id for node in self._master.clients.all if node.state != "missing"][: self._count]

    def wait_for_workers(self, stop: Callable[[], bool]) -> bool:
        """Wait until all expected workers are connected; False if `stop` returns True before."""
        while len(self.connected) < self._count:
            if stop():
                return False
            gevent.sleep(0.1)
        return True

    def run(
        self,
        target: Target,
        plan: LoadPlan | ClosedLoopPlan,
        *,
        payload: Payload | None = None,
        limit_ms: float | None = None,
        watch: Watch | None = None,
    ) -> LoadRun:
        """As `LoadGenerator.run`; a worker that is lost during the load is a problem of the measurement.

        `watch` gets the log up to the first request that has not ended, on any machine. Raises WorkerDied if
        workers are lost before the load begins, or all of them during it.
        """
        if not isinstance(plan, LoadPlan):
            raise PlanError("a closed loop is not divided between machines.\nUse --rate, or one machine.")
        self._runs += 1
        self._inbox.clear()
        workers = self.connected
        if len(workers) < self._count:
            raise WorkerDied(f"{len(workers)} of {self._count} workers are left.\nStart the others again.")
        job = LoadJob(target, plan, payload or Payload(), limit_ms=limit_ms)
        group = RemoteWorkers(messenger=self, run=self._runs, workers=workers, job=job)
        return PlanRun(job=job, workers=group, watch=watch, gpu=None).execute()

    def send(self, kind: str, worker: str, message: Message) -> None:
        """Send a message to one worker."""
        assert self._master is not None
        self._master.send_message(kind, message, worker)

    def receive(self, kind: str, worker: str) -> Message | None:
        """Return the oldest message of a kind that was not taken yet; None if there is none."""
        waiting = self._inbox[kind, worker]
        return waiting.popleft() if waiting else None

    def wait_for(self, kind: str, worker: str, timeout_s: float) -> Message:
        """Return the next message of a kind.

        Raises the error that the worker reports instead, or WorkerDied if it is stopped or gone, or after the
        time-out.
        """
        deadline = time.monotonic() + timeout_s
        silence = Silence(lambda: worker in self.connected)
        while time.monotonic() < deadline:
            message = self.receive(kind, worker)
            if message is not None:
                return message
            failure = self.receive(kinds.FAILED, worker)
            if failure is not None:
                raise error_from(failure)
            if silence.too_long():
                raise WorkerDied(f"the worker {worker} was stopped, or is gone.\nStart it again.")
            gevent.sleep(0.001)
        raise WorkerDied(f"the worker {worker} gave no answer in {timeout_s:g} s.\nStart it again.")

    def _note_wrong(self, worker: str, problem: str) -> None:
        """Take a message that was refused as a failure that its sender reports."""
        error = wrong_message(f"the worker {worker}", problem)
        self._inbox[kinds.FAILED, worker].append({"run": None, "error": type(error).__name__, "text": str(error)})

    def _listener(self, kind: str) -> Callable[..., None]:
        def listen(*, msg: Any, **_: Any) -> None:
            self._inbox[kind, msg.node_id].append(msg.data)

        return listen


def _check_free(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("" if host == "*" else host, port))
        except (OSError, OverflowError) as error:
            raise _cannot_listen(host, port, error) from error


def _cannot_listen(host: str, port: int, error: Exception) -> BadInput:
    return BadInput(
        f"The master cannot listen on port {port} of {host}: {error}.", "Choose another --port, or --bind."
    )
