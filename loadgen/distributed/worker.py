"""A worker of a load test that several machines send: a Locust worker that sends its shard of each plan."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import gevent

from loadgen.distributed.cluster import ClusterWorker
from loadgen.distributed.messages import Order, Report, rows_of
from loadgen.distributed.secret import keys_from_secret
from loadgen.errors import LoadError, PlanError
from loadgen.measurement.request_log import RequestLog
from loadgen.measurement.server_stats import read_statistics
from loadgen.processes import scratch_folder
from loadgen.sending.locust_user import OpenLoopUser
from loadgen.sending.request_table import GrowingLog, LogTable, planned_table
from loadgen.sending.shard import PreparedTarget, Shard, run_shard, shard_of
from loadgen.sending.worker import raise_file_limit, run_with_locust
from loadgen.spec.addresses import is_on_this_machine, shown_address
from loadgen.spec.plan import LoadPlan, Payload
from loadgen.spec.target import Target, WorkerRights
from loadgen.wire.poller import Poller, precise_timers

_ROWS_PERIOD_NS = 500_000_000
_ROWS_MAX = 20_000  # per message: half a megabyte, packed in 2 ms
_FAREWELL_S = 0.2


def work(host: str, port: int, rights: WorkerRights, *, on_connected: Callable[[], None]) -> None:
    """Serve the master until it sends "quit" or is gone for a minute.

    Raises ConnectionError if there is no master, WrongSecret if it has another secret.
    """
    logging.getLogger("locust").setLevel(logging.ERROR)
    raise_file_limit()
    precise_timers()
    runner = ClusterWorker(host, port, keys_from_secret(rights.secret))
    with scratch_folder("load") as folder:
        worker = DistributedWorker(runner.report, rights, folder)
        runner.on_order = lambda order: gevent.spawn(worker.carry_out, order)
        on_connected()
        try:
            runner.greenlet.join()
        finally:
            runner.environment.events.quitting.fire(environment=runner.environment)  # type: ignore[no-untyped-call]
            gevent.sleep(_FAREWELL_S)


class DistributedWorker:
    """Carries the master's orders out; one plan at a time."""

    def __init__(self, report: Callable[[Report], None], rights: WorkerRights, folder: Path) -> None:
        self._report = report
        self._rights = rights
        self._folder = folder
        self._poller = Poller()
        self._job: _Job | None = None

    def carry_out(self, order: Order) -> None:
        """Do what the master wants. Errors go to the master, which reports them."""
        try:
            self._carry_out(order)
        except LoadError as error:
            self._report(Report(run=order.run, failure=(type(error).__name__, str(error))))
        except Exception as error:  # it would be logged on this machine only
            text = f"{type(error).__name__} in the worker: {error}\nThis is a bug in tritune; please report it."
            self._report(Report(run=order.run, failure=("WorkerDied", text)))

    def _carry_out(self, order: Order) -> None:
        job = self._job
        if order.do == "clock":
            self._report(Report(run=order.run, here_ns=time.monotonic_ns()))
        elif order.do == "prepare":
            self._prepare(order)
            self._report(Report(run=order.run))
        elif job is None or job.run != order.run:
            return
        elif order.do == "statistics":
            self._report(Report(run=order.run, statistics=read_statistics(job.target)))
        elif order.do == "start":
            self._start(job, order.origin_ns)
        else:
            job.stop = True

    def _prepare(self, order: Order) -> None:
        """Connect, and try a request."""
        if self._job is not None:
            self._job.prepared.close()
        self._job = None
        assert order.job is not None
        plan = order.job.plan
        assert isinstance(plan, LoadPlan)
        target = self._target(order, order.job.target)
        # In a thread: Locust's heartbeats go on.
        table = gevent.get_hub().threadpool.apply(planned_table, (plan, order.part, order.parts))
        shard = shard_of(plan, order.part, order.parts, limit_ms=order.job.limit_ms)
        shard = replace(shard, part=0, parts=1)  # the table has only this worker's rows
        prepared = PreparedTarget(target, self._payload(order, order.job.payload), self._poller, plan.timeout_s)
        prepared.connect(shard.connections_ahead)
        self._job = _Job(run=order.run, target=target, shard=shard, table=table, prepared=prepared)

    def _start(self, job: _Job, origin_ns: int) -> None:
        """Send the shard from `origin_ns` of this machine's clock on, and report requests as they end."""
        next_ns = _ROWS_PERIOD_NS
        growing = GrowingLog(job.table, late_ns=None)

        def tick() -> bool:
            nonlocal next_ns
            OpenLoopUser.give_way()
            now_ns = time.monotonic_ns() - origin_ns
            if now_ns >= next_ns:
                next_ns = now_ns + _ROWS_PERIOD_NS
                self._ship(job, growing.at(now_ns))
            return job.stop

        result = run_with_locust(
            lambda: run_shard(job.shard, job.table, job.prepared, self._poller, origin_ns, tick)
        )
        job.prepared.close()
        self._ship(job, job.table.finished(result.rows))
        self._report(Report(run=job.run, result=result))

    def _ship(self, job: _Job, log: RequestLog) -> None:
        """Report the requests of a growing log that were not reported yet."""
        for at in range(job.shipped, len(log), _ROWS_MAX):
            rows = log.rows(at, min(len(log), at + _ROWS_MAX))
            self._report(Report(run=job.run, rows=rows_of(rows)))
        job.shipped = len(log)

    def _target(self, order: Order, target: Target) -> Target:
        """Return the target with this worker's headers and certificate.

        Raises PlanError for other headers, without a certificate if the test has one, or without --yes.
        """
        rights = self._rights
        names = sorted(name.lower() for name, _ in rights.headers)
        if names != sorted(name.lower() for name in order.header_names):
            raise PlanError(
                f"this worker sends the headers {names}, and the test needs {list(order.header_names)}.\n"
                "Start it with the same --header-env; values never travel between machines."
            )
        if order.client_cert and rights.client_cert is None:
            raise PlanError(
                "this worker has no client certificate, and the test has one.\n"
                "Start it with its own --client-cert; keys never travel between machines."
            )
        if rights.server is not None and _server_of(rights.server) != _server_of(target.url):
            raise PlanError(
                f"this worker was started for {shown_address(rights.server)}, and the test is of {target.url}.\n"
                "Start it with the address of the test; headers are sent to no other."
            )
        if not rights.may_load_others and not is_on_this_machine(target.host):
            raise PlanError(
                f"{target.host} is not the worker's machine, and a load test can take a server down.\n"
                "Start the worker with --yes when it may load it."
            )
        return replace(
            target,
            headers=rights.headers,
            ca_cert=self._file("authority.pem", order.ca_cert),
            client_cert=rights.client_cert,
            client_key=rights.client_key,
        )

    def _payload(self, order: Order, payload: Payload) -> Payload:
        suffix = "" if payload.data_file is None else payload.data_file.suffix
        return replace(payload, data_file=self._file(f"samples{suffix}", order.data))

    def _file(self, name: str, data: bytes | None) -> Path | None:
        """Write contents that came with an order to this worker's own folder; None if there are none."""
        if data is None:
            return None
        path = self._folder / name
        path.write_bytes(data)
        return path


@dataclass(slots=True, kw_only=True)
class _Job:
    """A shard that is prepared or running."""

    run: int
    target: Target
    shard: Shard
    table: LogTable
    prepared: PreparedTarget
    shipped: int = 0  # rows that the master has
    stop: bool = False


def _server_of(url: str) -> tuple[str, str, int]:
    target = Target(url=url, model_name="any")
    return urlsplit(url).scheme, target.host, target.port
