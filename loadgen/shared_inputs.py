"""Inputs in shared memory, which a server on the same machine reads where they are instead of being sent them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from loadgen.errors import LoadError, PayloadError, TargetRefused
from loadgen.memory_key import with_memory_key
from loadgen.own_machine import is_on_this_machine
from loadgen.triton import register_memory, unregister_memory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from loadgen.plan import Target

SHARED = Path("/dev/shm")  # noqa: S108 - where POSIX shared memory is, and the server looks for it
ALIGNMENT = 64
PREFIX = "tritune-inputs-"


@dataclass(frozen=True, slots=True)
class Place:
    """Where one input of one request is: a region that the server knows, and bytes of it."""

    region: str
    offset: int
    size: int

    @property
    def parameters(self) -> dict[str, str | int]:
        """As the protocol's shared memory extension has them."""
        return {
            "shared_memory_region": self.region,
            "shared_memory_offset": self.offset,
            "shared_memory_byte_size": self.size,
        }


class SharedInputs:
    """A region with the inputs of all requests, known to the server until `close`.

    Its file is gone as soon as the server has mapped it: nothing is left behind, whatever ends this process.
    """

    def __init__(self, target: Target, places: Sequence[Mapping[str, Place]]) -> None:
        self._target = target
        self.places = places

    @classmethod
    def of(cls, target: Target, requests: Sequence[Mapping[str, bytes]]) -> Self:
        """Put the inputs' bytes there, by request and name.

        Raises PayloadError where there is no room or no common memory, TargetRefused, TargetUnreachable.
        """
        if not is_on_this_machine(target.host):
            raise PayloadError(
                f"{target.host} is not this machine, and memory is not shared with another.\n"
                "Leave --shared-memory out."
            )
        target = with_memory_key(target)
        remove_leftovers()
        region = f"{PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
        places, size = _laid_out(region, requests)
        path = SHARED / region
        try:
            with _written(path, places, requests, size):
                register_memory(target, region, key=f"/{region}", size=size)
        except OSError as error:
            raise PayloadError(
                f"The {size:,} bytes of the inputs do not go to {path}: {error.strerror}.\n"
                f"Make {SHARED} larger, or leave --shared-memory out."
            ) from error
        except TargetRefused as error:
            said = str(error).splitlines()[0]
            raise TargetRefused(
                f"{said}\nThe server has to be on this machine, with the same /dev/shm (docker run --ipc host), "
                "allowed to read our files there, and started for it (optimize serve --shared-memory system)."
            ) from error
        return cls(target, places)

    def close(self) -> None:
        """Let the server forget the region; one that is gone has done so."""
        with contextlib.suppress(LoadError):
            unregister_memory(self._target, self.region)

    @property
    def region(self) -> str:
        """Its name on the server."""
        return next(iter(self.places[0].values())).region


def remove_leftovers() -> None:
    """Remove the files of this user's processes that were killed while a server mapped them: nobody locks them."""
    for path in SHARED.glob(f"{PREFIX}*"):
        pid = path.name.removeprefix(PREFIX).partition("-")[0]
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if os.fstat(fd).st_uid == os.geteuid() and not Path("/proc", pid).exists():
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
            finally:
                os.close(fd)


def _laid_out(region: str, requests: Sequence[Mapping[str, bytes]]) -> tuple[list[dict[str, Place]], int]:
    """One input after the other, each at a multiple of the alignment, and the size of all."""
    places, end = [], 0
    for inputs in requests:
        placed = {}
        for name, data in inputs.items():
            placed[name] = Place(region, end, len(data))
            end += -(-len(data) // ALIGNMENT) * ALIGNMENT
        places.append(placed)
    return places, max(end, 1)


@contextlib.contextmanager
def _written(
    path: Path, places: Sequence[Mapping[str, Place]], requests: Sequence[Mapping[str, bytes]], size: int
) -> Iterator[None]:
    """The file for the time of the block. Written, not mapped: memory that runs out is then no signal."""
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        os.posix_fallocate(fd, 0, size)
        for placed, inputs in zip(places, requests, strict=True):
            for name, place in placed.items():
                os.pwrite(fd, inputs[name], place.offset)
        yield
    finally:
        os.close(fd)
        path.unlink(missing_ok=True)
