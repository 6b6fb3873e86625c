"""Read the memory that this process may use, and the limits of its control groups."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal


def memory_bytes(root: Path = Path("/"), *, kind: Literal["MemTotal", "MemAvailable"] = "MemTotal") -> int:
    """Return the installed memory in bytes, or what is left of it; or the tightest limit below that."""
    lines = [line.split() for line in text_of(root / "proc/meminfo").splitlines()]
    limits = [int(words[1]) * 1024 for words in lines if words[:1] == [f"{kind}:"]]
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
