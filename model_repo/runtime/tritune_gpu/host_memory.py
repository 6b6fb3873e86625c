"""Host memory that the GPU may read where it lies: Triton's own shared memory, page-locked once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from .driver import Cuda

SHARED_MEMORY = "/dev/shm/"  # noqa: S108 - a prefix to recognize, not a file to make


def own_mappings() -> str:
    """This process's memory map, as the kernel writes it."""
    with open("/proc/self/maps") as maps:  # noqa: PTH123
        return maps.read()


def shared_mapping_at(address: int, mappings: str) -> tuple[int, int] | None:
    """Start and end of the mapping of shared memory that holds `address`; None where it is other memory."""
    for line in mappings.splitlines():
        span, _, rest = line.partition(" ")
        start, end = (int(word, 16) for word in span.split("-"))
        if start <= address < end:
            return (start, end) if SHARED_MEMORY in rest else None
    return None


class DirectMemory:
    """Answers whether the GPU may read an array where it lies, and page-locks what it has not seen yet.

    Triton grows its shared memory by mapping it once more, and keeps the old mappings: what is locked stays valid.
    """

    def __init__(self, cuda: Cuda, *, mappings: Callable[[], str] = own_mappings) -> None:
        self._cuda = cuda
        self._mappings = mappings
        self._locked: list[tuple[int, int]] = []
        self._refused: set[int] = set()

    def covers(self, address: int, size_bytes: int) -> bool:
        """Whether all these bytes are page-locked shared memory, now or as of this call."""
        for start, end in self._locked:
            if start <= address and address + size_bytes <= end:
                return True
        return self._lock(address, size_bytes)

    def _lock(self, address: int, size_bytes: int) -> bool:
        if address in self._refused:
            return False
        found = shared_mapping_at(address, self._mappings())
        if found is None or not self._cuda.register(found[0], found[1] - found[0]):
            if len(self._refused) < 4096:
                self._refused.add(address)
            return False
        self._locked.insert(0, found)
        return address + size_bytes <= found[1]
