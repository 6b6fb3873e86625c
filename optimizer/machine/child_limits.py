"""Limits on the memory and CPU time of a child process that handles a model.

A model of a few kilobytes can ask for terabytes, or for years. The kernel enforces the limits (`setrlimit`), so
they also hold in native code.
"""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass

from loadgen.memory import memory_bytes
from loadgen.processes import die_with_parent

PARENT = "TRITUNE_PARENT_PID"
"""The environment variable in which a child finds its parent's process id."""

TELEMETRY = "ORT_DISABLE_TELEMETRY"
"""Without this variable, ONNX Runtime queues paths and a device id for a foreign host, once it is imported."""

GIB = 2**30
MACHINE_SHARE = 0.8
"""A process that runs a model may take 80 % of the machine's memory."""

BASE_BYTES, BYTES_PER_BYTE = 4 * GIB, 8
"""A process that works on a graph may take 4 GiB, for libraries and small results, and 8 bytes per byte of the
model: it keeps several copies of the graph."""

BASE_S, S_PER_GIB = 120, 30
"""CPU time for work on a graph: 120 s, and 30 s per GiB of the model. To read 1 GiB and compute its checksum takes
a few seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildLimits:
    """Limits of a process: `memory_bytes` of data, without libraries and files, and `cpu_s`, None for no limit."""

    memory_bytes: int
    cpu_s: int | None = None


def machine_limits() -> ChildLimits:
    """Return the limits of a process that runs a model. The caller that waits for it limits its time."""
    return ChildLimits(memory_bytes=int(MACHINE_SHARE * memory_bytes()))


def graph_limits(size_bytes: int) -> ChildLimits:
    """Return the limits of work on the graph of a model with files of `size_bytes`."""
    return ChildLimits(
        memory_bytes=min(BASE_BYTES + BYTES_PER_BYTE * size_bytes, machine_limits().memory_bytes),
        cpu_s=BASE_S + S_PER_GIB * size_bytes // GIB,
    )


def environment_of_child() -> dict[str, str]:
    """Return the environment for a child that calls `begin_as_child`."""
    return {TELEMETRY: "1", **os.environ, PARENT: str(os.getpid())}


def begin_as_child(limits: ChildLimits | None) -> None:
    """Apply the limits, and make this process end with the parent that is named by `environment_of_child`.

    Children of a child may call this with wider limits.
    """
    if PARENT in os.environ:
        die_with_parent(int(os.environ[PARENT]))
    if limits is None:
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash must not fill the disk with the memory's contents
    for kind, limit in ((resource.RLIMIT_DATA, limits.memory_bytes), (resource.RLIMIT_CPU, limits.cpu_s)):
        _, hard = resource.getrlimit(kind)
        finite = [one for one in (limit, hard) if one is not None and one != resource.RLIM_INFINITY]
        resource.setrlimit(kind, (min(finite, default=resource.RLIM_INFINITY), hard))
