"""The load process: receive plans from the parent, send their load, and return the results."""

from __future__ import annotations

import _socket
import dataclasses
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable

import gevent
from locust import User
from locust.env import Environment

from loadgen import errors
from loadgen.measurement.result import ShardResult
from loadgen.measurement.server_stats import read_statistics
from loadgen.processes import die_with_parent
from loadgen.sending.locust_user import OpenLoopUser
from loadgen.sending.messages import PAYLOAD, TARGET, Channel, Message
from loadgen.sending.request_table import LogTable
from loadgen.sending.shard import PreparedTarget, Shard, run_shard
from loadgen.wire.poller import Poller, precise_timers

_NICE = -15


def go_first() -> str:
    """Ask the kernel to run this process before others; return "real-time", "raised" or "normal".

    A client that waits for a core behind the server's threads measures its own waiting, which a client on another
    machine would not have. Real-time scheduling and a negative niceness both need CAP_SYS_NICE. Without it nothing
    changes, and send lag shows if that matters. The client takes its time from the server, so a certified rate
    stays safe.
    """
    try:
        # The kernel's limit (sched_rt_runtime_us) always leaves time to other processes.
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except OSError:
        pass
    else:
        return "real-time"
    try:
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    except OSError:
        return "normal"
    return "raised"


def raise_file_limit() -> None:
    """Allow this process as many connections as the system's hard limit allows."""
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))


class Worker:
    """Handles one message after the other; `prepare` and `start` belong together."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._poller = Poller()

    def serve(self) -> None:
        """Handle messages until the parent closes its end or has ended."""
        while True:
            message, fd = self._channel.receive()
            if message["do"] == "stop":  # it came after the end of the run
                continue
            try:
                answer = self._answer(message, fd)
            except errors.LoadError as error:
                answer = {"error": type(error).__name__, "text": str(error)}
            self._channel.send(answer)

    def _answer(self, message: Message, fd: int | None) -> Message:
        if message["do"] == "statistics":
            return {"statistics": read_statistics(TARGET.validate_python(message["target"]))}
        assert message["do"] == "prepare"
        assert fd is not None
        table = LogTable(fd, message["rows"], streamed=message["streamed"])
        os.close(fd)
        return self._prepare_and_run(message, table)

    def _prepare_and_run(self, message: Message, table: LogTable) -> Message:
        shard = Shard(**message["shard"])
        target = TARGET.validate_python(message["target"])
        payload = PAYLOAD.validate_python(message["payload"])
        prepared = PreparedTarget(target, payload, self._poller, shard.timeout_s)
        try:
            prepared.connect(shard.connections_ahead)
            self._channel.send({"prepared": True})
            start, _ = self._channel.receive()
            while start["do"] == "statistics":
                self._channel.send({"statistics": read_statistics(target)})
                start, _ = self._channel.receive()
            if start["do"] == "cancel":
                return {"cancelled": True}
            return dataclasses.asdict(self._run(shard, table, prepared, start["origin_ns"]))
        finally:
            prepared.close()

    def _run(self, shard: Shard, table: LogTable, prepared: PreparedTarget, origin_ns: int) -> ShardResult:
        def replay() -> ShardResult:
            return run_shard(shard, table, prepared, self._poller, origin_ns, self._must_stop)

        return run_with_locust(replay)

    def _must_stop(self) -> bool:
        OpenLoopUser.give_way()
        if not self._channel.waits(0):
            return False
        message, _ = self._channel.receive()
        return bool(message["do"] == "stop")


def run_with_locust(replay: Callable[[], ShardResult]) -> ShardResult:
    """Run `replay` as one Locust user in a runner of its own; an exception of the user is raised here."""
    results: list[ShardResult | BaseException] = []
    ended = gevent.event.Event()

    class ShardUser(OpenLoopUser):
        def replay(self) -> None:
            try:
                results.append(replay())
            except BaseException as error:  # Locust would log it and continue
                results.append(error)
            finally:
                ended.set()

    classes: list[type[User]] = [ShardUser]
    runner = Environment(user_classes=classes).create_local_runner()
    runner.start(1, spawn_rate=1)
    ended.wait()
    runner.quit()
    result = results[0]
    if isinstance(result, BaseException):
        raise result
    return result


def main() -> None:
    """`python -m loadgen.sending.worker PARENT_PID`, with one end of a socket pair as stdin."""
    die_with_parent(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides about Ctrl-C
    logging.basicConfig(level=logging.WARNING)
    raise_file_limit()
    precise_timers()
    go_first()
    try:
        Worker(Channel(_socket.socket(fileno=os.dup(0)))).serve()
    except (EOFError, ConnectionError, BrokenPipeError):
        return


if __name__ == "__main__":
    main()
