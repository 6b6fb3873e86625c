"""`loadtest --worker HOST`: Locust workers on one machine, each with a load process, until their master ends."""

from __future__ import annotations

import logging
import os
import sys
import time
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import gevent
from locust.env import Environment
from locust.runners import WorkerRunner
from pydantic import ValidationError

from loadgen.distributed.messages import MESSAGE, PIECE_BYTES, Order, Report, refusal, rows_of
from loadgen.distributed.sockets import encrypt_locust, worker_options
from loadgen.errors import LoadError, PlanError
from loadgen.processes import scratch_folder
from loadgen.sending.generator import LoadGenerator, LocalWorkers
from loadgen.sending.request_table import GrowingLog
from loadgen.spec.addresses import is_on_this_machine
from loadgen.spec.target import Target, WorkerRights

_ROWS_MAX = 40_000  # per report, which a master takes up to 2 MB
_FAREWELL_S = 0.2


def work(host: str, port: int, rights: WorkerRights) -> None:
    """Serve the master until it ends, or is gone for a minute."""
    logging.getLogger("locust").setLevel(logging.ERROR)
    encrypt_locust(worker_options(rights.secret), rights.secret)
    with scratch_folder("load") as folder, LoadGenerator() as generator:
        worker = Worker(host, port, rights, folder, generator)
        sys.stderr.write(f"Worker {os.getpid()} is connected to {host}:{port}.\n")
        try:
            worker.greenlet.join()
        finally:
            worker.send_message("quit")
            gevent.sleep(_FAREWELL_S)


class Worker(WorkerRunner):
    """Locust's worker, which carries the master's orders out with a load process; one plan at a time."""

    def __init__(self, host: str, port: int, rights: WorkerRights, folder: Path, generator: LoadGenerator) -> None:
        self._rights = rights
        self._folder = folder
        self._generator = generator
        self._group: LocalWorkers | None = None
        self._pieces: list[bytes] = []  # of an order that has not come as a whole
        super().__init__(Environment(user_classes=[]), host, port)

    def handle_message(self, msg: Any) -> None:
        """Carry an order out, beside others; handle Locust's own messages as Locust does."""
        if msg.type != MESSAGE:
            super().handle_message(msg)
            return
        self._pieces.append(msg.data)
        if len(msg.data) < PIECE_BYTES:
            gevent.spawn(self._report, self._pieces)
            self._pieces = []

    def _report(self, pieces: list[bytes]) -> None:
        """Carry an order out. Errors go to the master, which reports them."""
        number = 0
        try:
            order = Order.model_validate_json(b"".join(pieces))
            number = order.number
            report = self._carry_out(order)
        except ValidationError as error:
            report = refusal("the master", error)
        except LoadError as error:
            report = Report(failure=(type(error).__name__, str(error)))
        except Exception as error:  # it would be logged on this machine only
            text = f"{type(error).__name__} in the worker: {error}\nThis is a bug in tritune; please report it."
            report = Report(failure=("WorkerDied", text))
        report.number = number
        self.send_message(MESSAGE, report.model_dump_json())  # type: ignore[arg-type]

    def _carry_out(self, order: Order) -> Report:
        group = self._group
        if order.do == "clock":
            return Report(here_ns=time.monotonic_ns())
        if order.do == "prepare":
            self._prepare(order)
        elif group is None:  # it was never prepared: there is nothing to stop
            return Report()
        elif order.do == "statistics":
            return Report(statistics=group.read_statistics())
        elif order.do == "look":
            return self._look(group, order.known)
        elif order.do == "start":
            self._growing = GrowingLog(group.table, late_ns=None)
            group.start(order.origin_ns)
        elif group.origin_ns:
            group.stop()
        return Report()

    def _prepare(self, order: Order) -> None:
        """Connect, and try a request."""
        if self._group is not None:
            self._group.abandon()
        self._group = None
        assert order.job is not None
        for name, data in order.files.items():
            self._here(Path(name)).write_bytes(data)
        target, payload = self._own(order.job.target), order.job.payload
        if payload.data_file is not None:
            payload = replace(payload, data_file=self._here(payload.data_file))
        job = replace(order.job, target=target, payload=payload)
        # In a thread: to draw a long schedule takes seconds, in which Locust's heartbeats must go on.
        group = gevent.get_hub().threadpool.apply(self._generator.workers_for, (job, order.part, order.parts))
        group.prepare()
        self._group = group

    def _look(self, group: LocalWorkers, known: int) -> Report:
        """Return the requests that ended since the master knew so many; the result with the last of them."""
        sends = not group.results and group.wait(0.0)
        log = self._growing.at(time.monotonic_ns() - group.origin_ns) if sends else group.log()
        end = min(len(log), known + _ROWS_MAX)
        result = None if sends or end < len(log) else group.results[0]
        return Report(rows=rows_of(log.rows(known, end)), result=result)

    def _here(self, name: Path) -> Path:
        """Return the file of this name in this worker's own folder."""
        return self._folder / name.name

    def _own(self, target: Target) -> Target:
        """Return the target with this worker's headers and certificate.

        Raises PlanError for other headers, without a certificate if the test has one, or without --yes.
        """
        own = self._rights.server or Target(url=target.url, model_name=target.model_name)
        names, wanted = (sorted(name.lower() for name, _ in one.headers) for one in (own, target))
        if names != wanted:
            raise PlanError(
                f"this worker sends the headers {names}, and the test needs {wanted}.\n"
                "Start it with the same --header-env; values never travel between machines."
            )
        if target.client_cert and not own.client_cert:
            raise PlanError(
                "this worker has no client certificate, and the test has one.\n"
                "Start it with its own --client-cert; keys never travel between machines."
            )
        server = attrgetter("host", "port", "is_http", "is_tls")
        if server(own) != server(target):
            raise PlanError(
                f"this worker was started for {own.url}, and the test is of {target.url}.\n"
                "Start it with the address of the test; headers are sent to no other."
            )
        if not self._rights.may_load_others and not is_on_this_machine(target.host):
            raise PlanError(
                f"{target.host} is not the worker's machine, and a load test can take a server down.\n"
                "Start the worker with --yes when it may load it."
            )
        return replace(
            target,
            headers=own.headers,
            ca_cert=target.ca_cert and self._here(target.ca_cert),
            client_cert=own.client_cert,
            client_key=own.client_key,
        )
