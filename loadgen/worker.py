"""A load process: waits for plans from its parent, sends their load with Locust, and answers with what it saw."""

from __future__ import annotations

import _socket
import dataclasses
import logging
import os
import resource
import signal
import sys
from typing import TYPE_CHECKING

import gevent
from locust.env import Environment

from loadgen import errors
from loadgen.messages import Channel, Message, payload_from_json, target_from_json
from loadgen.open_loop import OpenLoopUser
from loadgen.parent import die_with_parent
from loadgen.poller import Poller, precise_timers
from loadgen.priority import go_first
from loadgen.share import PreparedTarget, Share, ShareResult, carry_out
from loadgen.shared_log import LogTable
from loadgen.triton import read_statistics

if TYPE_CHECKING:
    from collections.abc import Callable

    from locust import User


class Worker:
    """Answers one message after the other; `prepare` and `start` belong together."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._poller = Poller()

    def serve(self) -> None:
        """Until the parent closes its end, or is no more."""
        while True:
            message, fd = self._channel.receive()
            if message["do"] == "stop":  # it crossed the end of the run on its way
                continue
            try:
                answer = self._answer(message, fd)
            except errors.LoadError as error:
                answer = {"error": type(error).__name__, "text": str(error)}
            self._channel.send(answer)

    def _answer(self, message: Message, fd: int | None) -> Message:
        if message["do"] == "statistics":
            return {"statistics": read_statistics(target_from_json(message["target"]))}
        assert message["do"] == "prepare"
        assert fd is not None
        table = LogTable(fd, message["rows"])
        os.close(fd)
        return self._prepare_and_run(message, table)

    def _prepare_and_run(self, message: Message, table: LogTable) -> Message:
        share = Share(**message["share"])
        target, payload = target_from_json(message["target"]), payload_from_json(message["payload"])
        prepared = PreparedTarget(target, payload, self._poller, share.timeout_s)
        try:
            prepared.connect(share.connections_ahead)
            self._channel.send({"prepared": True})
            start, _ = self._channel.receive()
            while start["do"] == "statistics":
                self._channel.send({"statistics": read_statistics(target)})
                start, _ = self._channel.receive()
            if start["do"] == "cancel":
                return {"cancelled": True}
            return dataclasses.asdict(self._run(share, table, prepared, start["origin_ns"]))
        finally:
            prepared.close()

    def _run(self, share: Share, table: LogTable, prepared: PreparedTarget, origin_ns: int) -> ShareResult:
        def replay() -> ShareResult:
            return carry_out(share, table, prepared, self._poller, origin_ns, self._asked_to_stop)

        return run_with_locust(replay)

    def _asked_to_stop(self) -> bool:
        OpenLoopUser.give_way()
        if not self._channel.waits(0):
            return False
        message, _ = self._channel.receive()
        return bool(message["do"] == "stop")


def run_with_locust(replay: Callable[[], ShareResult]) -> ShareResult:
    """Let one Locust user do it, in a runner of its own; an exception of the user is raised here."""
    results: list[ShareResult | BaseException] = []
    ended = gevent.event.Event()

    class ShareUser(OpenLoopUser):
        def replay(self) -> None:
            try:
                results.append(replay())
            except BaseException as error:  # Locust would log it and go on
                results.append(error)
            finally:
                ended.set()

    classes: list[type[User]] = [ShareUser]
    runner = Environment(user_classes=classes).create_local_runner()
    runner.start(1, spawn_rate=1)
    ended.wait()
    runner.quit()
    result = results[0]
    if isinstance(result, BaseException):
        raise result
    return result


def main() -> None:
    """`python -m loadgen.worker PARENT_PID`, with one end of a socket pair as stdin."""
    die_with_parent(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to decide about
    logging.basicConfig(level=logging.WARNING)
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    precise_timers()
    go_first()
    try:
        Worker(Channel(_socket.socket(fileno=os.dup(0)))).serve()
    except (EOFError, ConnectionError, BrokenPipeError):
        return


if __name__ == "__main__":
    main()
