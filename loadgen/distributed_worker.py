"""A worker of a load test that several machines send: a Locust worker that carries out its share of each plan."""

from __future__ import annotations

import dataclasses
import logging
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import gevent
from locust.env import Environment

from loadgen import distributed_messages as kinds
from loadgen.addresses import shown_address
from loadgen.arrivals import peak_rate_per_s, schedule, schedule_pieces, split, split_pieces
from loadgen.cluster import ClusterWorker, wrong_message
from loadgen.cluster_secret import keys_from_secret
from loadgen.errors import LoadError, PlanError
from loadgen.laps import Laps, rows_for
from loadgen.open_loop import OpenLoopUser
from loadgen.own_machine import is_on_this_machine
from loadgen.plan import Payload, Target
from loadgen.poller import Poller, precise_timers
from loadgen.scratch import scratch_folder
from loadgen.share import PreparedTarget, Share, carry_out
from loadgen.shared_log import GrowingLog, own_table
from loadgen.triton import read_statistics
from loadgen.worker import run_with_locust

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from loadgen.distributed_messages import Message
    from loadgen.measurement import RequestLog
    from loadgen.shared_log import LogTable
    from loadgen.worker_rights import WorkerRights

_ROWS_EVERY_NS = 500_000_000
_MOST_ROWS = 20_000  # a message: half a megabyte, packed in half a millisecond
_NEVER_NS = 1 << 62
_FAREWELL_S = 0.2


def work(host: str, port: int, rights: WorkerRights, *, on_connected: Callable[[], None]) -> None:
    """Serve the master until it says quit or is gone for a minute.

    Raises ConnectionError where there is none, WrongSecret where it has another secret.
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
    """Answers the master's messages; one plan at a time."""

    def __init__(self, runner: ClusterWorker, rights: WorkerRights, folder: Path) -> None:
        self._runner = runner
        self._rights = rights
        self._folder = folder
        self._poller = Poller()
        self._job: _Job | None = None
        for kind, answer in (
            (kinds.CLOCK, self._tell_time),
            (kinds.PREPARE, self._prepare),
            (kinds.START, self._start),
            (kinds.STOP, self._stop),
            (kinds.STATISTICS, self._tell_statistics),
        ):
            takes_long = kind in (kinds.PREPARE, kinds.START, kinds.STATISTICS)
            runner.register_message(kind, _answering(self, answer), concurrent=takes_long)
        runner.on_wrong = self._refuse

    def send(self, kind: str, message: Message) -> None:
        """To the master."""
        self._runner.send_message(kind, message)

    def _refuse(self, sender: str, problem: str) -> None:
        error = wrong_message(sender, problem)
        self.send(kinds.FAILED, {"run": None, "error": type(error).__name__, "text": str(error)})

    def _tell_time(self, message: Mapping[str, Any]) -> None:
        self.send(kinds.CLOCK, {**message, "here_ns": time.monotonic_ns()})

    def _prepare(self, message: Mapping[str, Any]) -> None:
        """Connect, and try a request: PREPARED, or FAILED with the reason."""
        if self._job is not None:
            self._job.prepared.close()
        self._job = None
        target = self._target(message["target"])
        plan = kinds.plan_from_message(message["plan"])
        part, parts = message["part"], message["parts"]
        share = Share(
            part=0,
            parts=1,
            timeout_s=plan.timeout_s,
            rate_per_s=plan.rate_per_s / parts,
            limit_ms=message["limit_ms"],
            duration_s=plan.duration_s,
            max_in_flight=None if plan.max_in_flight is None else max(1, (plan.max_in_flight + part) // parts),
            laps=message["laps"],
        )
        prepared = PreparedTarget(target, self._payload(message["payload"]), self._poller, plan.timeout_s)
        prepared.connect(share.connections_ahead)
        if message["laps"]:
            table = own_table(rows_for(peak_rate_per_s(plan) / parts, plan.timeout_s, 1))
            laps = Laps(table, split_pieces(schedule_pieces(plan), part, parts))
        else:
            due_ns = split(schedule(plan), part, parts)
            table, laps = own_table(len(due_ns)), None
            table.scheduled_ns[:] = due_ns
        self._job = _Job(run=message["run"], target=target, share=share, table=table, laps=laps, prepared=prepared)
        self.send(kinds.PREPARED, {"run": message["run"]})

    def _start(self, message: Mapping[str, Any]) -> None:
        """Send the share from `origin_ns` of this machine's clock on; ROWS on the way, DONE at the end."""
        job = self._job
        if job is None or job.run != message["run"]:
            return
        origin_ns: int = message["origin_ns"]
        growing, next_ns, shipped = GrowingLog(job.table, None), _ROWS_EVERY_NS, 0

        def tick() -> bool:
            nonlocal next_ns, shipped
            OpenLoopUser.give_way()
            now_ns = time.monotonic_ns() - origin_ns
            if now_ns >= next_ns:
                next_ns = now_ns + _ROWS_EVERY_NS
                if job.laps is not None:
                    self._ship_lap(job, job.laps.turn(), job.laps.settled_until_ns)
                    return job.stop
                shipped = self._ship(job, growing.at(now_ns), shipped)
            return job.stop

        result = run_with_locust(
            lambda: carry_out(job.share, job.table, job.prepared, self._poller, origin_ns, tick)
        )
        self._job = None
        job.prepared.close()
        if job.laps is not None:
            self._ship_lap(job, job.laps.turn(), job.laps.settled_until_ns)
            self._ship_lap(job, job.laps.rest(), _NEVER_NS)
            self.send(kinds.DONE, {"run": job.run, "result": dataclasses.asdict(result)})
            return
        log = job.table.finished(result.rows)
        while shipped < len(log):
            shipped = self._ship(job, log, shipped)
            gevent.sleep(0)
        self.send(kinds.DONE, {"run": job.run, "result": dataclasses.asdict(result)})

    def _ship(self, job: _Job, log: Any, shipped: int) -> int:
        """Send rows that are settled, and until when all are; returns how many the master has by now."""
        end = min(len(log), shipped + _MOST_ROWS)
        until_ns = int(job.table.scheduled_ns[end]) if end < job.table.rows else _NEVER_NS
        rows = kinds.rows_to_message(log.rows(shipped, end))
        self.send(kinds.ROWS, {"run": job.run, "until_ns": until_ns, "rows": rows})
        return end

    def _ship_lap(self, job: _Job, log: RequestLog, until_ns: int) -> None:
        """Send rows that are settled; all that were due before `until_ns` are, with these."""
        for at in range(0, max(1, len(log)), _MOST_ROWS):
            rows = log.rows(at, min(len(log), at + _MOST_ROWS))
            here_ns = until_ns if at + len(rows) == len(log) else int(rows.scheduled_ns[-1])
            self.send(kinds.ROWS, {"run": job.run, "until_ns": here_ns, "rows": kinds.rows_to_message(rows)})

    def _stop(self, message: Mapping[str, Any]) -> None:
        if self._job is not None and self._job.run == message["run"]:
            self._job.stop = True

    def _tell_statistics(self, message: Mapping[str, Any]) -> None:
        target = self._target(message["target"])
        self.send(kinds.STATISTICS, {"run": message["run"], "statistics": read_statistics(target)})

    def _target(self, message: Mapping[str, Any]) -> Target:
        """The target with this worker's own headers. Raises PlanError for other headers, or without --yes."""
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
        """Raises PlanError for a server that this worker was not started for: its headers go nowhere else."""
        own = self._rights.server
        if own is not None and _server_of(own) != _server_of(target.url):
            raise PlanError(
                f"this worker was started for {shown_address(own)}, and the test is of {target.url}.\n"
                "Start it with the address of the test; headers are sent to no other."
            )

    def _payload(self, message: Mapping[str, Any]) -> Payload:
        """What to send; a data file came along and lies in this worker's own folder."""
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
    """A share that is prepared or running."""

    run: int
    target: Target
    share: Share
    table: LogTable
    prepared: PreparedTarget
    laps: Laps | None  # of a load that is too long to keep its rows
    stop: bool = False


def _server_of(url: str) -> tuple[str, str, int]:
    target = Target(url=url, model_name="any")
    return urlsplit(url).scheme, target.host, target.port


def _answering(worker: DistributedWorker, answer: Callable[[Mapping[str, Any]], None]) -> Callable[..., None]:
    """A listener for Locust; errors go to the master, which knows what to say about them."""

    def listen(*, msg: Any, **_: Any) -> None:
        try:
            answer(msg.data)
        except LoadError as error:
            worker.send(
                kinds.FAILED, {"run": msg.data.get("run"), "error": type(error).__name__, "text": str(error)}
            )
        except Exception as error:  # Locust would log it here, where nobody looks
            text = f"{type(error).__name__} in the worker: {error}\nThis is a bug in tritune; please report it."
            worker.send(kinds.FAILED, {"run": msg.data.get("run"), "error": "WorkerDied", "text": text})

    return listen
