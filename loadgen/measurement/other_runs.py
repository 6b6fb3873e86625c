"""Name the other runs on this machine that have load processes, as they and this one disturb each other."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from pathlib import Path

from loadgen.printable import printable

LOAD_PROCESS = "loadgen.sending.worker"
_PROC = Path("/proc")


def other_runs(mine: int) -> list[str]:
    """Return `loadtest (process 7)` for each, of any user; `mine` is the process that runs us."""
    names: dict[int, str] = {}
    for folder in _PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if LOAD_PROCESS.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                parent = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
                names[int(parent)] = (_PROC / parent / "comm").read_text(errors="replace").strip()
    return [f"{printable(name)} (process {pid})" for pid, name in sorted(names.items()) if pid != mine]


def and_others(runs: Collection[str]) -> str:
    """Return the end of a sentence that names them; "" if there are none."""
    return f", and {' and '.join(runs)} sent load from this machine, too" if runs else ""
