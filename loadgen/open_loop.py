"""The Locust user that follows a schedule and never waits for an answer."""

from __future__ import annotations

import gevent
from locust import User, task
from locust.exception import StopUser


class OpenLoopUser(User):
    """One user is one whole schedule: it takes the place of Locust's wait time and of many users who wait.

    Subclasses say in `replay` what the schedule sends. Between two sends the user does not give way to other
    greenlets, because they would delay the next; `give_way` does, and is called about every 50 ms.
    """

    abstract = True

    @task
    def follow_schedule(self) -> None:
        """Replay the whole schedule once, then end this user."""
        self.replay()
        raise StopUser

    def replay(self) -> None:
        """Send all requests of the schedule; return when the last has ended."""
        raise NotImplementedError

    @staticmethod
    def give_way() -> None:
        """Let Locust's own greenlets run: statistics, heartbeat, web UI, stop."""
        gevent.sleep(0)
