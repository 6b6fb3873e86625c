"""A load test that several machines send: the master gives out shards and merges the logs."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from typing import Self

import gevent
from locust.exception import RPCError

from loadgen.distributed.cluster import ClusterMaster
from loadgen.distributed.run import RemoteWorkers
from loadgen.distributed.secret import keys_from_secret
from loadgen.errors import BadInput, PlanError, WorkerDied
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
        self._runs = 0

    def __enter__(self) -> Self:
        logging.getLogger("locust").setLevel(logging.CRITICAL)
        try:
            # Locust would end the process if the port is taken.
            socket.create_server(("" if self._host == "*" else self._host, self._port)).close()
            self._master = ClusterMaster(self._host, self._port, keys_from_secret(self._secret))
        except (OSError, OverflowError, RPCError) as error:
            raise BadInput(
                f"The master cannot listen on port {self._port} of {self._host}: {error}.",
                "Choose another --port, or --bind.",
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        self._master.quit()  # workers end with their master

    def wait_for_workers(self, stop: Callable[[], bool]) -> bool:
        """Wait until all expected workers are connected; False if `stop` returns True before."""
        while len(self._master.connected) < self._count:
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
        workers = self._master.connected[: self._count]
        if len(workers) < self._count:
            raise WorkerDied(f"{len(workers)} of {self._count} workers are left.\nStart the others again.")
        job = LoadJob(target, plan, payload or Payload(), limit_ms=limit_ms)
        group = RemoteWorkers(messenger=self._master, run=self._runs, workers=workers, job=job)
        return PlanRun(job=job, workers=group, watch=watch, gpu=None).execute()
