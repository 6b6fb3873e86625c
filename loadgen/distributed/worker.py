"""A worker of a load test that several machines send: a Locust worker that sends its shard of each plan."""

from __future__ import annotations

import dataclasses
import logging
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import gevent
from locust.env import Environment

from loadgen.clients.triton import read_statistics
from loadgen.distributed import messages as kinds
from loadgen.distributed.cluster import ClusterWorker, wrong_message
from loadgen.distributed.messages import Message
from loadgen.distributed.secret import keys_from_secret
from loadgen.errors import LoadError, PlanError
from loadgen.measurement.request_log import RequestLog
from loadgen.processes import scratch_folder
from loadgen.sending.locust_user import OpenLoopUser
from loadgen.sending.request_table import GrowingLog, LogTable, planned_table
from loadgen.sending.shard import PreparedTarget, Shard, run_shard, shard_of
from loadgen.sending.worker import run_with_locust
from loadgen.spec.addresses import is_on_this_machine, shown_address
from loadgen.spec.plan import Payload
from loadgen.spec.target import Target, WorkerRights
from loadgen.transport.poller import Poller, precise_timers

_ROWS_PERIOD_NS = 500_000_000
_ROWS_MAX = 20_000  # per message: half a megabyte, packed in half a millisecond
_FAREWELL_S = 0.2


def work(host: str, port: int, rights: WorkerRights, *, on_connected: Callable[[], None]) -> None:
    """Serve the master until it sends "quit" or is gone for a minute.

    Raises ConnectionError if there is no master, WrongSecret if it has another secret.
    """
    logging.getLogger("locust").setLevel(logging.ERROR)
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    precise_timers()
    environment = Environment(user_classes=[])
    runner = ClusterWorker(environment, host, port, keys_from_secret(rights.secret))
    with scratch_folder("load") as folder:
        DistributedWorker(runner, rights, folder)
        on_connected()
        try:
            runner.greenlet.join()
        finally:
            environment.events.quitting.fire(environment=environment)  # type: ignore[no-untyped-call]
            gevent.sleep(_FAREWELL_S)


class DistributedWorker:
    """Handles the master's messages; one plan at a time."""

    def __init__(self, runner: ClusterWorker, rights: WorkerRights, folder: Path) -> None:
        self._runner = runner
        self._rights = rights
        self._folder = folder
        self._poller = Poller()
        self._job: _Job | None = None
        for kind, answer in (
            (kinds.CLOCK, self._send_time),
            (kinds.PREPARE, self._prepare),
            (kinds.START, self._start),
            (kinds.STOP, self._stop),
            (kinds.STATISTICS, self._send_statistics),
        ):
            takes_long = kind in (kinds.PREPARE, kinds.START, kinds.STATISTICS)
            runner.register_message(kind, _listener(self, answer), concurrent=takes_long)
        runner.on_wrong = self._refuse

    def send(self, kind: str, message: Message) -> None:
        """Send a message to the master."""
        self._runner.send_message(kind, message)

    def _refuse(self, sender: str, problem: str) -> None:
        error = wrong_message(sender, problem)
        self.send(kinds.FAILED, {"run": None, "error": type(error).__name__, "text": str(error)})

    def _send_time(self, message: Mapping[str, Any]) -> None:
        self.send(kinds.CLOCK, {**message, "here_ns": time.monotonic_ns()})

    def _prepare(self, message: Mapping[str, Any]) -> None:
        """Connect, and try a request. Send PREPARED, or FAILED with the reason."""
        if self._job is not None:
            self._job.prepared.close()
        self._job = None
        target = self._target(message["target"])
        plan = kinds.plan_from_message(message["plan"])
        part, parts = message["part"], message["parts"]
        table = gevent.get_hub().threadpool.apply(planned_table, (plan, part, parts))  # heartbeats go on
        shard = shard_of(plan, part, parts, limit_ms=message["limit_ms"])
        shard = replace(shard, part=0, parts=1)  # the table has only this worker's rows
        prepared = PreparedTarget(target, self._payload(message["payload"]), self._poller, plan.timeout_s)
        prepared.connect(shard.connections_ahead)
        self._job = _Job(run=message["run"], shard=shard, table=table, prepared=prepared)
        self.send(kinds.PREPARED, {"run": message["run"]})

    def _start(self, message: Mapping[str, Any]) -> None:
        """Send the shard from `origin_ns` of this machine's clock on, with ROWS as requests end, and DONE."""
        job = self._job
        if job is None or job.run != message["run"]:
            return
        origin_ns: int = message["origin_ns"]
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
        self._job = None
        job.prepared.close()
        self._ship(job, job.table.finished(result.rows))
        self.send(kinds.DONE, {"run": job.run, "result": dataclasses.asdict(result)})

    def _ship(self, job: _Job, log: RequestLog) -> None:
        """Send the rows of a growing log that were not sent yet."""
        for at in range(job.shipped, len(log), _ROWS_MAX):
            rows = log.rows(at, min(len(log), at + _ROWS_MAX))
            self.send(kinds.ROWS, {"run": job.run, "rows": kinds.rows_to_message(rows)})
        job.shipped = len(log)

    def _stop(self, message: Mapping[str, Any]) -> None:
        if self._job is not None and self._job.run == message["run"]:
            self._job.stop = True

    def _send_statistics(self, message: Mapping[str, Any]) -> None:
        target = self._target(message["target"])
        self.send(kinds.STATISTICS, {"run": message["run"], "statistics": read_statistics(target)})

    def _target(self, message: Mapping[str, Any]) -> Target:
        """Return the target with this worker's headers. Raises PlanError for other headers, or without --yes."""
        names = sorted(name.lower() for name, _ in self._rights.headers)
        if names != sorted(name.lower() for name in message["header_names"]):
            raise PlanError(
                f"this worker sends the headers {names}, and the test needs {message['header_names']}.\n"
                "Start it with the same --header-env; values never travel between machines."
            )
        ca_cert = None
        if message["ca_cert"] is not None:
            ca_cert = self._folder / "authority.pem"
            ca_cert.write_bytes(message["ca_cert"])
        target = Target(
            url=message["url"],
            model_name=message["model_name"],
            model_version=message["model_version"],
            headers=self._rights.headers,
            ca_cert=ca_cert,
            insecure=message["insecure"],
        )
        self._check_address(target)
        if not self._rights.may_load_others and not is_on_this_machine(target.host):
            raise PlanError(
                f"{target.host} is not the worker's machine, and a load test can take a server down.\n"
                "Start the worker with --yes when it may load it."
            )
        return target

    def _check_address(self, target: Target) -> None:
        """Raise PlanError for a server that this worker was not started for: its headers go nowhere else."""
        own = self._rights.server
        if own is not None and _server_of(own) != _server_of(target.url):
            raise PlanError(
                f"this worker was started for {shown_address(own)}, and the test is of {target.url}.\n"
                "Start it with the address of the test; headers are sent to no other."
            )

    def _payload(self, message: Mapping[str, Any]) -> Payload:
        """Return the payload; the data file of the message goes to this worker's own folder."""
        data_file = None
        if message["data"] is not None:
            data_file = self._folder / f"samples{Path(message['data_name']).suffix}"
            data_file.write_bytes(message["data"])
        return Payload(
            batch_size=message["batch_size"],
            shapes={name: tuple(shape) for name, shape in message["shapes"].items()},
            data_file=data_file,
            seed=message["seed"],
            shared_memory=message["shared_memory"],
        )


@dataclass(slots=True, kw_only=True)
class _Job:
    """A shard that is prepared or running."""

    run: int
    shard: Shard
    table: LogTable
    prepared: PreparedTarget
    shipped: int = 0  # rows that the master has
    stop: bool = False


def _server_of(url: str) -> tuple[str, str, int]:
    target = Target(url=url, model_name="any")
    return urlsplit(url).scheme, target.host, target.port


def _listener(worker: DistributedWorker, answer: Callable[[Mapping[str, Any]], None]) -> Callable[..., None]:
    """Return a listener for Locust; errors go to the master, which reports them."""

    def listen(*, msg: Any, **_: Any) -> None:
        try:
            answer(msg.data)
        except LoadError as error:
            worker.send(
                kinds.FAILED, {"run": msg.data.get("run"), "error": type(error).__name__, "text": str(error)}
            )
        except Exception as error:  # Locust would log it on this machine only
            text = f"{type(error).__name__} in the worker: {error}\nThis is a bug in tritune; please report it."
            worker.send(kinds.FAILED, {"run": msg.data.get("run"), "error": "WorkerDied", "text": text})

    return listen
