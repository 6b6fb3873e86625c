"""Limits on the memory and CPU time of a child process that handles a model.

A model of a few kilobytes can ask for terabytes, or for years. The kernel enforces the limits (`setrlimit`), so
they also hold in native code. The available memory is read from the control groups of this process.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from loadgen.processes import die_with_parent


def memory_bytes(root: Path = Path("/")) -> int:
    """Return the installed memory in bytes, or the tightest limit below it."""
    lines = [line.split() for line in text_of(root / "proc/meminfo").splitlines()]
    limits = [int(words[1]) * 1024 for words in lines if words[:1] == ["MemTotal:"]]
    for folder in control_groups(root, "memory"):
        words = (text_of(folder / "memory.max") or text_of(folder / "memory.limit_in_bytes")).split()
        limits += [int(word) for word in words if word.isdigit()]
    return min(limits, default=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def control_groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield this process's control group for `controller` and all groups above it: each of them may set a limit.

    Version 2 has one tree, version 1 has one per controller. Inside a container the path may be the host's, of
    which only the last parts, or none, are visible here.
    """
    mount = root / "sys/fs/cgroup"
    for line in text_of(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = mount / controllers if controllers else mount
        top = top if top.is_dir() else mount / controller
        folder = top / path.lstrip("/")
        while folder != top:
            yield folder
            folder = folder.parent
        yield top


def text_of(path: Path) -> str:
    """Return the file's text; "" if it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


PARENT = "TRITUNE_PARENT_PID"
"""The environment variable in which a child finds its parent's process id."""

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
    return {**os.environ, PARENT: str(os.getpid())}


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
        wanted = resource.RLIM_INFINITY if limit is None else limit
        unlimited = hard == resource.RLIM_INFINITY
        resource.setrlimit(kind, (wanted if unlimited else _smaller(wanted, hard), hard))


def _smaller(wanted: int, hard: int) -> int:
    return hard if wanted == resource.RLIM_INFINITY else min(wanted, hard)
