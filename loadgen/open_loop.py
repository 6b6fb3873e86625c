"""The Locust user that follows a schedule and never waits for an answer."""

from __future__ import annotations

import logging
from typing import ClassVar

import gevent
from locust import User, task
from locust.exception import StopUser

from loadgen.errors import LoadError

log = logging.getLogger("tritune.locust")


class OpenLoopUser(User):
    """One user is one whole schedule: it takes the place of Locust's wait time and of many users who wait.

    Subclasses say in `replay` what the schedule sends. Between two sends the user does not give way to other
    greenlets, because they would delay the next; `give_way` does, and is called about every 50 ms. So a process
    runs one such user; any further one ends at once and says so.
    """

    abstract = True
    _running: ClassVar[bool] = False

    @task
    def follow_schedule(self) -> None:
        """Replay the whole schedule once, then end this user. An error ends it too, and Locust exits with 2."""
        if OpenLoopUser._running:
            log.error("An open-loop user is the whole load of a process, so a second one does not start.")
            log.error("Raise rate_per_s, or run with --processes N --users N.")
            raise StopUser
        OpenLoopUser._running = True
        try:
            self.replay()
        except LoadError as error:
            log.error("%s", error)  # noqa: TRY400 - two lines that say what to do, not a traceback
            self.environment.process_exit_code = 2
        finally:
            OpenLoopUser._running = False
        raise StopUser

    def replay(self) -> None:
        """Send all requests of the schedule; return when the last has ended."""
        raise NotImplementedError

    @staticmethod
    def give_way() -> None:
        """Let Locust's own greenlets run: statistics, heartbeat, web UI, stop."""
        gevent.sleep(0)
