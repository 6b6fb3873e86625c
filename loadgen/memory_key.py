"""The key that a server of tritune's wants before it maps shared memory, for the user who started it."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.triton import read_server_name

if TYPE_CHECKING:
    from loadgen.plan import Target

HEADER = "tritune-memory"
_OUR_SERVERS = re.compile(r"tritune-[0-9a-f]{12}")
_FOLDER = Path("/dev/shm")  # noqa: S108 - where the server leaves it, for its owner alone
_LONGEST_KEY = 1000


def with_memory_key(target: Target) -> Target:
    """The target with the key among its headers; as it is where the server left none that is ours to read."""
    name = read_server_name(target) or ""
    key = _key_of(name) if _OUR_SERVERS.fullmatch(name) else None
    if key is None:
        return target
    header = HEADER if target.is_http else f"triton-grpc-protocol-{HEADER}"
    return replace(target, headers=(*target.headers, (header, key)))


def _key_of(name: str) -> str | None:
    """None where another user wrote it: with a key of theirs, requests would tell them of our memory."""
    try:
        fd = os.open(_FOLDER / f"{name}-memory-key", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(fd) as file:
        about = os.fstat(fd)
        if about.st_uid != os.geteuid() or not stat.S_ISREG(about.st_mode):
            return None
        return file.read(_LONGEST_KEY)
