"""The Locust user that follows a schedule and never waits for a response."""

from __future__ import annotations

import logging
from typing import ClassVar

import gevent
from locust import User, task
from locust.exception import StopUser

from loadgen.errors import LoadError

log = logging.getLogger("tritune.locust")


class OpenLoopUser(User):
    """One user sends a whole schedule: it replaces Locust's wait time and many users who wait.

    Subclasses send the schedule in `replay`. Between two requests the user does not give way to other greenlets,
    because they would delay the next request; `give_way` does, and is called about every 50 ms. So a process runs
    one such user, and a second one logs an error and ends.
    """

    abstract = True
    _running: ClassVar[bool] = False

    @task
    def follow_schedule(self) -> None:
        """Send the schedule once, then end this user. After an error Locust exits with code 2."""
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
