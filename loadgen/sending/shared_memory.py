"""Inputs in system shared memory, and the key that our own servers require for it."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from loadgen.errors import LoadError, PayloadError, TargetRefused
from loadgen.spec.addresses import is_on_this_machine
from loadgen.spec.target import Target
from loadgen.traffic.payloads import Place
from loadgen.wire.questions import PAUSES_S, change_memory, pause, read_server_name

HEADER = "tritune-memory"
_OUR_SERVERS = re.compile(r"tritune-[0-9a-f]{12}")

SHARED = Path("/dev/shm")  # noqa: S108 - the folder of POSIX shared memory
ALIGNMENT = 64
PREFIX = "tritune-inputs-"


def with_memory_key(target: Target) -> Target:
    """Return the target with the key that its server, if it is this user's, left for us, or unchanged."""
    name = read_server_name(target) or ""
    file = SHARED / f"{name}-memory-key"
    if not _OUR_SERVERS.fullmatch(name) or not file.is_file() or file.lstat().st_uid != os.geteuid():
        return target
    header = HEADER if target.is_http else f"triton-grpc-protocol-{HEADER}"
    return replace(target, headers=(*target.headers, (header, file.read_text())))


@contextmanager
def shared_inputs(target: Target, requests: Sequence[Mapping[str, bytes]]) -> Iterator[list[dict[str, Place]]]:
    """Write the inputs, by request and name, to a region that the server has mapped until the block ends.

    Its file is removed as soon as the server has mapped it, so nothing stays behind however this process ends.
    Raises PayloadError if there is no room or no common memory, TargetRefused, TargetUnreachable.
    """
    if not is_on_this_machine(target.host):
        raise PayloadError(
            f"{target.host} is not this machine, and memory is not shared with another.\n"
            "Leave --shared-memory out."
        )
    target = with_memory_key(target)
    region = f"{PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
    places, size = _lay_out(region, requests)
    path = SHARED / region
    try:
        with _write_file(path, places, requests, size):
            change_memory(target, region, "Register", key=f"/{region}", offset=0, byte_size=size)
    except OSError as error:
        raise PayloadError(
            f"The {size:,} bytes of the inputs do not go to {path}: {error.strerror}.\n"
            f"Make {SHARED} larger, or leave --shared-memory out."
        ) from error
    except TargetRefused as error:
        cause = str(error).splitlines()[0]
        raise TargetRefused(
            f"{cause}\nThe server has to be on this machine, with the same /dev/shm (docker run --ipc host), "
            "allowed to read our files there, and started for it (optimize serve --shared-memory system)."
        ) from error
    try:
        yield places
    finally:
        _unregister(target, region)


def _unregister(target: Target, region: str) -> None:
    """Unregister the region, once the server is done with the last request; one that has ended needs none."""
    with suppress(LoadError):
        for pause_s in PAUSES_S:
            try:
                change_memory(target, region, "Unregister")
            except TargetRefused:
                pause(pause_s)
            else:
                break


def _lay_out(region: str, requests: Sequence[Mapping[str, bytes]]) -> tuple[list[dict[str, Place]], int]:
    """Return the places of the inputs, each at a multiple of the alignment, and the size of all."""
    places, end = [], 0
    for inputs in requests:
        placed = {}
        for name, data in inputs.items():
            placed[name] = Place(region, end, len(data))
            end += -(-len(data) // ALIGNMENT) * ALIGNMENT
        places.append(placed)
    return places, max(end, 1)


@contextmanager
def _write_file(
    path: Path, places: Sequence[Mapping[str, Place]], requests: Sequence[Mapping[str, bytes]], size: int
) -> Iterator[None]:
    """Write the file, which lasts until the block ends. A write reports full memory; a map would be killed."""
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    try:
        os.posix_fallocate(fd, 0, size)
        for placed, inputs in zip(places, requests, strict=True):
            for name, place in placed.items():
                os.pwrite(fd, inputs[name], place.offset)
        yield
    finally:
        os.close(fd)
        path.unlink(missing_ok=True)
