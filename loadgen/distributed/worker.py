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
from loadgen.processes import scratch_folder
from loadgen.sending.generator import LoadGenerator, LocalWorkers
from loadgen.sending.request_table import GrowingLog
from loadgen.spec.addresses import is_on_this_machine, shown_address
from loadgen.spec.plan import Payload
from loadgen.spec.target import Target, WorkerRights

_ROWS_PERIOD_S = 0.5
_ROWS_MAX = 20_000  # per message: half a megabyte, packed in 2 ms
_FAREWELL_S = 0.2


def work(host: str, port: int, rights: WorkerRights, *, on_connected: Callable[[], None]) -> None:
    """Serve the master until it sends "quit" or is gone for a minute.

    Raises ConnectionError if there is no master, WrongSecret if it has another secret.
    """
    logging.getLogger("locust").setLevel(logging.ERROR)
    with scratch_folder("load") as folder, LoadGenerator() as generator:
        runner = ClusterWorker(host, port, keys_from_secret(rights.secret))
        worker = DistributedWorker(runner.report, rights, folder, generator)
        runner.on_order = lambda order: gevent.spawn(worker.carry_out, order)
        on_connected()
        try:
            runner.greenlet.join()
        finally:
            runner.environment.events.quitting.fire(environment=runner.environment)  # type: ignore[no-untyped-call]
            gevent.sleep(_FAREWELL_S)


class DistributedWorker:
    """Carries the master's orders out with a load process; one plan at a time."""

    def __init__(
        self, report: Callable[[Report], None], rights: WorkerRights, folder: Path, generator: LoadGenerator
    ) -> None:
        self._report = report
        self._rights = rights
        self._folder = folder
        self._generator = generator
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
            self._report(Report(run=order.run, statistics=job.group.read_statistics()))
        elif order.do == "start":
            self._start(job, order.origin_ns)
        elif job.group.origin_ns:
            job.group.stop()

    def _prepare(self, order: Order) -> None:
        """Connect, and try a request."""
        if self._job is not None:
            self._job.group.abandon()
        self._job = None
        assert order.job is not None
        target, payload = self._target(order, order.job.target), self._payload(order, order.job.payload)
        job = replace(order.job, target=target, payload=payload)
        # In a thread: to draw a long schedule takes seconds, in which Locust's heartbeats must go on.
        group = gevent.get_hub().threadpool.apply(self._generator.workers_for, (job, order.part, order.parts))
        group.prepare()
        self._job = _Job(run=order.run, group=group)

    def _start(self, job: _Job, origin_ns: int) -> None:
        """Send the shard from `origin_ns` of this machine's clock on, and report requests as they end."""
        group, growing = job.group, GrowingLog(job.group.table, late_ns=None)
        group.start(origin_ns)
        while group.wait(_ROWS_PERIOD_S):
            if self._job is not job:  # the master has given this plan up
                return
            self._ship(job, growing.at(time.monotonic_ns() - origin_ns))
        self._ship(job, group.log())
        self._report(Report(run=job.run, result=group.results[0]))

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
    group: LocalWorkers
    shipped: int = 0  # rows that the master has


def _server_of(url: str) -> tuple[str, str, int]:
    target = Target(url=url, model_name="any")
    return urlsplit(url).scheme, target.host, target.port
