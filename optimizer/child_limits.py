"""How much memory and processor time a child process that handles a model may take.

A model of a few kilobytes can ask for terabytes, or for years. The limits are the kernel's own (`setrlimit`), so
they hold inside of native code too.
"""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass

from loadgen.parent import die_with_parent
from optimizer.control_groups import memory_bytes

PARENT = "TRITUNE_PARENT_PID"
"""The environment variable in which a child finds its parent's process id."""

GIB = 2**30
MACHINE_SHARE = 0.8
"""Share of the machine's memory that a process that runs a model may take."""

BASE_BYTES, BYTES_PER_BYTE = 4 * GIB, 8
"""Work on a graph keeps several copies of it; libraries and a model's small results need the rest."""

BASE_S, S_PER_GIB = 120, 30
"""Processor time for work on a graph. Reading a file of 1 GiB and its checksum take a few seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildLimits:
    """`memory_bytes` of data, libraries and files not counted; `cpu_s` of processor time, None for no limit."""

    memory_bytes: int
    cpu_s: int | None = None


def machine_limits() -> ChildLimits:
    """For a process that runs a model: most of the machine's memory. Its time is limited by who waits for it."""
    return ChildLimits(memory_bytes=int(MACHINE_SHARE * memory_bytes()))


def graph_limits(size_bytes: int) -> ChildLimits:
    """For work on the graph of a model with files of `size_bytes`."""
    return ChildLimits(
        memory_bytes=min(BASE_BYTES + BYTES_PER_BYTE * size_bytes, machine_limits().memory_bytes),
        cpu_s=BASE_S + S_PER_GIB * size_bytes // GIB,
    )


def environment_of_child() -> dict[str, str]:
    """The environment for a child that calls `begin_as_child`."""
    return {**os.environ, PARENT: str(os.getpid())}


def begin_as_child(limits: ChildLimits) -> None:
    """Take the limits on, and end when the parent ends. A child's own children may call this with wider limits."""
    end_with_parent()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash must not fill the disk with the memory's contents
    for kind, limit in ((resource.RLIMIT_DATA, limits.memory_bytes), (resource.RLIMIT_CPU, limits.cpu_s)):
        _, hard = resource.getrlimit(kind)
        wanted = resource.RLIM_INFINITY if limit is None else limit
        unlimited = hard == resource.RLIM_INFINITY
        resource.setrlimit(kind, (wanted if unlimited else _smaller(wanted, hard), hard))


def end_with_parent() -> None:
    """Be killed when the process ends that started us with `environment_of_child`."""
    if PARENT in os.environ:
        die_with_parent(int(os.environ[PARENT]))


def _smaller(wanted: int, hard: int) -> int:
    return hard if wanted == resource.RLIM_INFINITY else min(wanted, hard)
