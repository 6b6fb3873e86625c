"""The load process goes first on a machine that it shares with the server it loads."""

from __future__ import annotations

import os

_NICE = -15


def go_first() -> str:
    """Ask the kernel to run this process as soon as it wants to; returns what was granted.

    A client that waits for a core behind the server's threads measures its own waiting. On a machine of its own,
    as in production, it would not. Real-time scheduling and a negative niceness both need CAP_SYS_NICE; without
    it nothing changes, and send lag says so where it matters. The time that the client takes is taken from the
    server, so a promise stays safe.
    """
    try:
        # The processor's own guard (sched_rt_runtime_us) leaves the others a share whatever we do.
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
