"""How Locust starts open-loop users: one in each process, until its schedule ends, without a number to choose."""

from __future__ import annotations

import logging
import signal
import time
from pathlib import Path
from typing import Any

import gevent
from locust import LoadTestShape
from locust.env import Environment
from locust.runners import STATE_INIT, STATE_RUNNING, Runner, WorkerRunner

from loadgen.sending.locust_user import OpenLoopUser

log = logging.getLogger("tritune.locust")

_STYLE = """<style>
.MuiFormControl-root:has(input:disabled), button.MuiButton-colorSecondary:disabled {display: none}
.MuiCollapse-root:has(input[name=rate]) {height: auto !important; visibility: visible !important}
</style></head>"""
"""Locust greys out what a load shape decides, the numbers of users and Edit, and folds custom options. It has no
setting that leaves those out and shows these."""


_CSV_WAIT_S = 30.0


class OneUserPerProcess(LoadTestShape):
    """Runs one user in each process until the last has sent its schedule: Locust asks for no number of users."""

    _users = 1

    def tick(self) -> tuple[int, float] | None:
        """Return the number of users and the users started per second; None ends the test."""
        runner: Any = self.runner
        workers = getattr(runner, "clients", None)  # those that are slow to start count as workers without users
        starting = workers and (workers.ready or workers.spawning)
        if runner.state == STATE_INIT:
            self._users = max(1, runner.worker_count)
            # Locust sends options that are not its own to the workers.
            options = runner.environment.parsed_options
            options.open_loops, options.longest_s = self._users, options.run_time
        elif runner.state == STATE_RUNNING and not starting and runner.user_count == 0:
            return None
        return self._users, float(self._users)


def set_up(environment: Environment, runner: Runner, web_ui: Any, **_: Any) -> None:
    """Let Locust start one user per process if all users are open loops, and end after their last requests."""
    main = gevent.getcurrent()
    for number in (signal.SIGINT, signal.SIGTERM):  # as Locust does, but never in the midst of the sending loop
        signal.signal(number, lambda *_: gevent.kill(main, KeyboardInterrupt))
    if isinstance(runner, WorkerRunner):
        return
    environment.events.quitting.add_listener(_complete)  # type: ignore[no-untyped-call]
    only_open_loops = all(issubclass(user, OpenLoopUser) for user in environment.user_classes)
    names = [user.__name__ for user in environment.user_classes]
    if only_open_loops and len(names) > 1:
        log.warning("A process sends one open loop, and this locustfile has %d: %s.", len(names), ", ".join(names))
        log.warning("Name one of them, as in locust -f FILE %s.", names[0])
    if environment.shape_class is None and only_open_loops:
        environment.shape_class = OneUserPerProcess()  # type: ignore[no-untyped-call]
        environment.shape_class.runner = runner
        if web_ui is not None:
            web_ui.app.after_request(_restyle)


def _restyle(response: Any) -> Any:
    if response.mimetype == "text/html" and not response.direct_passthrough:
        response.set_data(response.get_data(as_text=True).replace("</head>", _STYLE, 1))
    return response


def _complete(environment: Environment, **_: Any) -> None:
    """Wait for the last requests, and until they are in the CSV files, which Locust writes once per second."""
    runner: Any = environment.runner
    runner.stop()
    runner.quit()
    prefix = getattr(environment.parsed_options, "csv_prefix", None)
    if prefix:
        file = Path(f"{prefix}_stats.csv")
        before_ns, until_s = file.stat().st_mtime_ns, time.monotonic() + _CSV_WAIT_S
        while file.stat().st_mtime_ns == before_ns and time.monotonic() < until_s:
            gevent.sleep(0.05)
