"""The load process: receive plans from the parent, send their load, and return the results."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import resource

from loadgen import errors
from loadgen.measurement.other_runs import other_runs
from loadgen.measurement.server_stats import read_statistics
from loadgen.sending.messages import PAYLOAD, TARGET, Channel, Message, channel_to_parent
from loadgen.sending.prepared import PreparedTarget
from loadgen.sending.request_table import LogTable
from loadgen.sending.send_loop import Shard
from loadgen.sending.shard import run_shard
from loadgen.wire.poller import Poller, precise_timers

_NICE = -15


def go_first(*, alone: bool) -> str:
    """Ask the kernel to run this process before others; return "real-time", "raised" or "normal".

    Real-time only if no other run sends load (`alone`), and two processors are left: else those would stall.

    A client that waits for a core behind the server's threads measures its own waiting, which a client on another
    machine would not have. Real-time scheduling and a negative niceness both need CAP_SYS_NICE. Without it nothing
    changes, and send lag shows if that matters. The client takes its time from the server, so a certified rate
    stays safe.
    """
    real_time = alone and len(os.sched_getaffinity(0)) > 2
    policy = os.SCHED_RR if real_time else os.SCHED_OTHER
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, policy | os.SCHED_RESET_ON_FORK, os.sched_param(int(real_time)))
        if real_time:
            return "real-time"
    try:
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    except OSError:
        return "normal"
    return "raised"


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
        assert fd is not None  # it comes with "prepare"
        table = LogTable(fd, message["rows"], streamed=message["streamed"])
        os.close(fd)
        return self._prepare_and_run(message, table)

    def _prepare_and_run(self, message: Message, table: LogTable) -> Message:
        shard = Shard(**message["shard"])
        target = TARGET.validate_python(message["target"])
        payload = PAYLOAD.validate_python(message["payload"])
        beside = other_runs(os.getppid())
        go_first(alone=not beside)
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
            origin_ns = start["origin_ns"]
            result = run_shard(shard, table, prepared, self._poller, origin_ns, self._must_stop)
            return dataclasses.asdict(result) | {"beside": [*beside, *other_runs(os.getppid())]}
        finally:
            prepared.close()

    def _must_stop(self) -> bool:
        return self._channel.waits(0) and bool(self._channel.receive()[0]["do"] == "stop")


def main() -> None:
    """`python -m loadgen.sending.worker PARENT_PID`, with one end of a socket pair as stdin."""
    channel = channel_to_parent()
    logging.basicConfig(level=logging.WARNING)
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))  # for as many connections
    precise_timers()
    try:
        Worker(channel).serve()
    except (EOFError, ConnectionError, BrokenPipeError):
        return


if __name__ == "__main__":
    main()
