"""Host memory that the GPU may read directly: Triton's own shared memory, page-locked once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from .driver import DriverCuda

SHARED_MEMORY = "/dev/shm/"  # noqa: S108 - a prefix to recognize, not a file to make


def own_mappings() -> str:
    """Return this process's memory map in the kernel's format."""
    with open("/proc/self/maps") as maps:  # noqa: PTH123
        return maps.read()


def mapping_at(address: int, mappings: str) -> tuple[int, int, bool] | None:
    """Return (start, end, is shared memory) of the mapping that holds `address`; None if no mapping does."""
    for line in mappings.splitlines():
        span, _, rest = line.partition(" ")
        start, end = (int(word, 16) for word in span.split("-"))
        if start <= address < end:
            return start, end, SHARED_MEMORY in rest
    return None


class DirectMemory:
    """Decides if the GPU may read an array directly, and page-locks shared memory on first sight.

    Triton grows its shared memory by mapping it once more, and keeps the old mappings: locked memory stays valid.
    """

    def __init__(self, cuda: DriverCuda, *, mappings: Callable[[], str] = own_mappings) -> None:
        self._cuda = cuda
        self._mappings = mappings
        self._locked: list[tuple[int, int]] = []
        self._refused: list[tuple[int, int]] = []

    def covers(self, address: int, size_bytes: int) -> bool:
        """True if all these bytes are page-locked shared memory; locks them on first sight if the driver can."""
        end = address + size_bytes
        if _within(self._locked, address, end):
            return True
        if _within(self._refused, address, end):
            return False
        found = mapping_at(address, self._mappings())
        if found is None or end > found[1]:
            return False
        locked = found[2] and self._cuda.register(found[0], found[1] - found[0])
        (self._locked if locked else self._refused).insert(0, found[:2])
        return locked


def _within(spans: list[tuple[int, int]], start: int, end: int) -> bool:
    return any(first <= start and end <= last for first, last in spans)
