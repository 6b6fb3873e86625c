"""A load test that several machines send: Locust's master, which divides the work and merges the logs."""

from __future__ import annotations

import logging
import socket
import time
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any

import gevent
from locust.env import Environment
from locust.exception import RPCError

from loadgen import distributed_messages as kinds
from loadgen.cluster import ClusterMaster, wrong_message
from loadgen.cluster_secret import keys_from_secret
from loadgen.distributed_run import DistributedRun
from loadgen.errors import PlanError, WorkerDied
from loadgen.load_process import error_from
from loadgen.plan import LoadPlan, Payload
from loadgen.silence import Silence
from loadgen.user_errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from loadgen.distributed_messages import Message
    from loadgen.plan import ClosedLoopPlan, Target
    from loadgen.runner import LoadRun, Watch
    from loadgen.tally import Tally


class DistributedGenerator:
    """Workers on other machines as one load generator, from `with` to the end of its block.

    Worker k of n sends every n-th request of the plan's schedule from the k-th on, so that together they send
    exactly the plan. Their clocks are compared before each run, and the start is a time on each one's own.
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
            self._master.register_message(kind, self._receiving(kind))
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
        """The workers that are there, in the order in which they came; at most as many as are expected."""
        assert self._master is not None
        return [node.id for node in self._master.clients.all if node.state != "missing"][: self._count]

    def wait_for_workers(self, stop: Callable[[], bool]) -> bool:
        """Wait until all expected workers are there; False when asked to stop before."""
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
        tally: Tally | None = None,
    ) -> LoadRun:
        """As `LoadGenerator.run`; a worker that is lost on the way is a problem of the measurement.

        `watch` sees the log up to the first request that has not come back, on whichever machine. Raises
        WorkerDied when workers are lost before the load begins, or all of them during it.
        """
        if not isinstance(plan, LoadPlan):
            raise PlanError("a closed loop is not divided between machines.\nUse --rate, or one machine.")
        self._runs += 1
        self._inbox.clear()
        workers = self.connected
        if len(workers) < self._count:
            raise WorkerDied(f"{len(workers)} of {self._count} workers are left.\nStart the others again.")
        run = DistributedRun(
            self,
            self._runs,
            workers,
            target,
            plan,
            payload or Payload(),
            limit_ms=limit_ms,
            watch=watch,
            tally=tally,
        )
        return run.carried_out()

    def send(self, kind: str, worker: str, message: Message) -> None:
        """To one worker."""
        assert self._master is not None
        self._master.send_message(kind, message, worker)

    def receive(self, kind: str, worker: str) -> Message | None:
        """The oldest message of a kind that was not taken yet."""
        waiting = self._inbox[kind, worker]
        return waiting.popleft() if waiting else None

    def awaited(self, kind: str, worker: str, timeout_s: float) -> Message:
        """The next message of a kind. Raises what the worker reports instead, or WorkerDied after the time-out."""
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
        """A message that was refused counts as a failure that its sender reports."""
        error = wrong_message(f"the worker {worker}", problem)
        self._inbox[kinds.FAILED, worker].append({"run": None, "error": type(error).__name__, "text": str(error)})

    def _receiving(self, kind: str) -> Callable[..., None]:
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
