"""Record what the GPU does for `optimize profile`, by NVIDIA's CUPTI through the package `cupti-python`.

Nothing happens unless the variable `TRITUNE_TIMELINE` names a folder. What runs between the appearance of the
files `begin` and `end` in it is then written to `gpu-PROCESS.json`: kernels, copies and launches of graphs, each
as start, end (ns of the monotonic clock), name, stream, and whether a CUDA graph started it. `missing-PROCESS`
says why nothing can be recorded, and `recording-PROCESS` is there until then.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

FOLDER = "TRITUNE_TIMELINE"
BUFFER_BYTES = 32 << 20
"""Records lie in buffers of 32 MiB, which are read once they are full or at the end: few reads beside the load."""


def record_if_asked() -> None:
    """Start a thread that records when it is told to, if a timeline was asked for."""
    if folder := os.environ.get(FOLDER):
        threading.Thread(target=_record, args=(Path(folder),), daemon=True).start()


def _record(folder: Path) -> None:
    draft = folder / f"recording-{os.getpid()}"
    draft.touch()
    try:
        name, text = "gpu-{}.json", json.dumps(_between(folder / "begin", folder / "end"))
    except Exception as error:
        name, text = "missing-{}", f"{type(error).__name__}: {error}"
    draft.write_text(text)
    draft.replace(folder / name.format(os.getpid()))


def _wait_for(file: Path) -> None:
    while not file.exists():
        time.sleep(0.01)


def _between(begin: Path, end: Path) -> dict[str, list[tuple[int, int, str, int, int]]]:
    from cuda.pathfinder import load_nvidia_dynamic_lib

    load_nvidia_dynamic_lib("cupti")
    from cupti import cupti

    kind = cupti.ActivityKind
    found: dict[str, list[tuple[int, int, str, int, int]]] = {"work": [], "copies": [], "calls": []}
    copies = {int(one): one.name for one in cupti.ActivityMemcpyKind}

    def keep(activities: list[Any]) -> None:
        for one in activities:
            if one.kind == kind.CONCURRENT_KERNEL:
                found["work"].append((one.start, one.end, one.name, one.stream_id, int(one.graph_id > 0)))
            elif one.kind == kind.MEMCPY:
                name = f"{copies[one.copy_kind]} {one.bytes:,} B"
                found["copies"].append((one.start, one.end, name, one.stream_id, int(one.graph_id > 0)))
            elif one.kind == kind.DRIVER:
                found["calls"].append((one.start, one.end, "cuGraphLaunch", one.thread_id, 1))

    _wait_for(begin)
    cupti.activity_register_callbacks(lambda: (BUFFER_BYTES, 0), keep)
    for each in (kind.CONCURRENT_KERNEL, kind.MEMCPY):
        cupti.activity_enable(each)
    calls = getattr(cupti, "driver_api_trace_cbid", None) or cupti.DriverApiTraceCbid
    cupti.activity_enable_driver_api(int(calls.cuGraphLaunch), 1)
    later_ns = time.monotonic_ns() - cupti.get_timestamp()
    _wait_for(end)
    cupti.activity_flush_all(1)
    return {
        name: [(start + later_ns, end + later_ns, *more) for start, end, *more in rows]
        for name, rows in found.items()
    }
