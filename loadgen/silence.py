"""How long a process has given no sign of life, so that nobody waits for one that was stopped."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST_S = 5.0
_MOST_PER_LOOK_S = 1.0


class Silence:
    """Adds up the time in which a process was seen not to run, look after look.

    A look counts for a second at most: when whoever looks was stopped as well, as by Ctrl-Z or a paused virtual
    machine, that is not the other's silence.
    """

    def __init__(self, runs: Callable[[], bool], now_s: Callable[[], float] = time.monotonic) -> None:
        self._runs = runs
        self._now_s = now_s
        self._last_s = now_s()
        self._silent_s = 0.0

    def too_long(self) -> bool:
        """Look, at least once a second; True when it has not run for 5 s."""
        now_s = self._now_s()
        since_s, self._last_s = now_s - self._last_s, now_s
        self._silent_s = 0.0 if self._runs() else self._silent_s + min(since_s, _MOST_PER_LOOK_S)
        return self._silent_s >= LONGEST_S


def runs(pid: int) -> bool:
    """False if the process has been stopped, by SIGSTOP or by a debugger; True where nobody can tell."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return status.rpartition(")")[2].split()[0] not in ("T", "t")
