"""Locust users that load a model on Triton, for your own locustfile and for Locust's web UI.

    from loadgen.triton_user import TritonHttpUser

    class Resnet(TritonHttpUser):
        host = "http://127.0.0.1:8000"
        model_name = "resnet"
        rate_per_s = 200

`locust -f that_file.py` then shows its load; each further process (`--processes 4 --users 4`) adds the same rate.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from locust.user.task import LOCUST_STATE_STOPPING

from loadgen.sending.locust_user import LocustFeed, OpenLoopUser
from loadgen.sending.request_table import planned_table
from loadgen.sending.shard import PreparedTarget, run_shard, shard_of
from loadgen.spec.plan import Arrivals, LoadPlan, Payload
from loadgen.spec.target import Target
from loadgen.wire.poller import Poller, precise_timers

_START_IN_NS = 250_000_000  # the load begins after a garbage collection, which would delay the first requests


class TritonUser(OpenLoopUser):
    """One open loop at `rate_per_s`.

    Locust's statistics are updated about once per second, with latency from the scheduled time, in Locust's
    rounding; its `request` event is not fired, since that would cost more than the request. In a distributed run
    every worker has its own seed. Only one user per process can run: a second would delay the first one's sends.
    """

    abstract = True
    model_name = ""
    model_version = ""
    headers: tuple[tuple[str, str], ...] = ()
    ca_cert: Path | None = None
    insecure = False
    client_cert: Path | None = None
    client_key: Path | None = None
    server_name: str | None = None
    rate_per_s = 1.0
    duration_s: float | None = None  # None: Locust's run time, else ten minutes
    arrivals = Arrivals()
    seed = 0
    timeout_s = 10.0
    max_in_flight: int | None = None
    payload = Payload()

    def replay(self) -> None:
        """Prepare with the server, then send; when Locust stops, wait for the requests in flight."""
        plan = self._plan()
        shard = shard_of(plan, 0, 1, limit_ms=None)
        table = planned_table(plan)
        feed = LocustFeed(self.environment.stats, table, name=self.model_name)
        poller = Poller()
        prepared = PreparedTarget(self._target(), self.payload, poller, plan.timeout_s)
        origin_ns = 0

        def stop() -> bool:
            feed.update(time.monotonic_ns() - origin_ns)
            self.give_way()
            return bool(self._state == LOCUST_STATE_STOPPING)

        try:
            precise_timers()
            prepared.connect(shard.connections_ahead)
            origin_ns = time.monotonic_ns() + _START_IN_NS
            run_shard(shard, table, prepared, poller, origin_ns, stop)
        finally:
            feed.finish()
            prepared.close()
            poller.close()

    def _plan(self) -> LoadPlan:
        options: Any = self.environment.parsed_options
        run_time_s = getattr(options, "run_time", None)
        return LoadPlan(
            rate_per_s=self.rate_per_s,
            duration_s=float(self.duration_s or run_time_s or 600.0),
            seed=self.seed + max(0, getattr(self.environment.runner, "worker_index", 0)),
            arrivals=self.arrivals,
            timeout_s=self.timeout_s,
            max_in_flight=self.max_in_flight,
        )

    def _target(self) -> Target:
        return Target(
            url=self.host or self.environment.host or "",
            model_name=self.model_name,
            model_version=self.model_version,
            headers=self.headers,
            ca_cert=self.ca_cert,
            insecure=self.insecure,
            client_cert=self.client_cert,
            client_key=self.client_key,
            server_name=self.server_name,
        )


class TritonHttpUser(TritonUser):
    """Loads over HTTP/1.1 and Triton's binary tensor extension; `host` is http:// or https://."""

    abstract = True
    host = "http://127.0.0.1:8000"


class TritonGrpcUser(TritonUser):
    """Loads over gRPC; `host` is grpc:// or grpcs://."""

    abstract = True
    host = "grpc://127.0.0.1:8001"
