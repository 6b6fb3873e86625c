"""Wait for an action of another process, or fail the test."""

import time
from collections.abc import Callable

LOOK_EVERY_S = 0.05


def wait_until(seen: Callable[[], object], *, most_s: float = 240.0) -> None:
    """Return once the condition holds; fail the test if it never does: the rest would prove nothing."""
    deadline = time.monotonic() + most_s
    while not seen():
        assert time.monotonic() < deadline, f"waited {most_s:.0f} s in vain"
        time.sleep(LOOK_EVERY_S)
