"""Waiting for what another process does: it comes, or the test fails there and then."""

import time
from collections.abc import Callable

LOOK_EVERY_S = 0.05


def wait_until(seen: Callable[[], object], *, most_s: float = 90.0) -> None:
    """Return once it is so. Fails the test if that does not come: what follows would prove nothing."""
    deadline = time.monotonic() + most_s
    while not seen():
        assert time.monotonic() < deadline, f"waited {most_s:.0f} s in vain"
        time.sleep(LOOK_EVERY_S)
