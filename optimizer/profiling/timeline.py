"""Where the time of a served model goes: requests, executions and kernels on one clock, their sums, a trace file.

All times are ns of the monotonic clock, which the client, Triton's trace and the runtimes share.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.measurement.request_log import RequestLog
from model_repo.spec import Protocol

Times = NDArray[np.int64]

STAGES = ("sent late", "to the server", "front end", "queue", "copy in", "compute", "copy out", "back")
"""Parts of a request's time, each from one column of `Timeline.requests` to the next."""

_ARRIVED: dict[Protocol, str] = {"http": "HTTP_RECV_END", "grpc": "GRPC_WAITREAD_END"}
_ON_THE_WAY = (
    "QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "INFER_RESPONSE_COMPLETE",
)  # fmt: skip

MOST_DRAWN = 200_000
"""Events in a trace file, each some 100 bytes; browsers open so many at once. Sums count all."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timeline:
    """What happened in a window of `start_ns` to `end_ns`.

    `requests`, shape (n, 9), in the order of the schedule: due, sent, read by the server, queued, begun, copied
    in, computed, copied out, answered. `executions`: begun, copied in, computed, ended, requests, shape (m, 5).
    `work` are a GPU's kernels, or ONNX Runtime's operators on a CPU; `copies` are the GPU's, `calls` the driver's
    launches of graphs: start, end, place in `names`, row to draw it in, and 1 if a graph started it, shape (k, 5).
    `instances` execute at most at once.
    """

    start_ns: int
    end_ns: int
    instances: int
    requests: Times
    executions: Times
    work: Times
    copies: Times
    calls: Times
    names: Sequence[str]
    on_gpu: bool


def read_trace(path: Path, model: str, protocol: Protocol) -> tuple[Times, Times]:
    """Return the requests and the executions in a trace file of Triton.

    Requests: read, queued, begun, copied in, computed, copied out, shape (n, 6), in the order of arrival.
    Executions as `Timeline` has them. An ensemble's requests compute from begin to end; its members execute.
    """
    seen: dict[int, dict[str, Any]] = {}
    for event in json.loads(path.read_bytes()):
        one = seen.setdefault(event["id"], {})
        one.update({stamp["name"]: stamp["ns"] for stamp in event.get("timestamps", ())})
        one.update({key: event[key] for key in ("model_name", "parent_id") if key in event})
    steps = {one["parent_id"] for one in seen.values() if "parent_id" in one}
    requests: list[list[Any]] = []
    batches: dict[tuple[Any, int], list[int]] = {}
    for number, one in seen.items():
        if number in steps:
            one.setdefault("QUEUE_START", one.get("REQUEST_START"))
            one["COMPUTE_START"] = one["COMPUTE_INPUT_END"] = one["QUEUE_START"]
            one["COMPUTE_OUTPUT_START"] = one.get("INFER_RESPONSE_COMPLETE")
        elif {"COMPUTE_START", "COMPUTE_END"} <= one.keys():
            batch = batches.setdefault((one.get("model_name"), one["COMPUTE_START"]), [0] * 5)
            batch[0], batch[4] = one["COMPUTE_START"], batch[4] + 1
            for place, name in enumerate(("COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"), 1):
                batch[place] = max(batch[place], one.get(name, 0))
        stamps = [one.get(name) for name in (_ARRIVED[protocol], *_ON_THE_WAY)]
        if one.get("model_name") == model and "parent_id" not in one and None not in stamps:
            requests.append(stamps)
    tables = (sorted(requests), 6), (sorted(batches.values()), 5)
    first, second = (np.array(rows, np.int64).reshape(-1, columns) for rows, columns in tables)
    return first, second


def joined(log: RequestLog, began_ns: int, served: Times) -> Times:
    """Return the requests of a client and of the server as one table, shape (n, 9).

    Neither side numbers them: the n-th that was sent is taken for the n-th that was read, which mistakes requests
    that overtook each other on the way, by the time that they did. `served` has as many as were answered.
    """
    answered = np.flatnonzero(~log.failed)
    sent = answered[np.argsort(log.sent_ns[answered], kind="stable")]
    both = min(len(sent), len(served))
    client, server = sent[len(sent) - both :], served[len(served) - both :]  # the server's first are the warm-up's
    due_ns, sent_ns, done_ns = (one[client] + began_ns for one in (log.scheduled_ns, log.sent_ns, log.done_ns))
    times = np.column_stack((due_ns, sent_ns, server, done_ns))
    return np.maximum.accumulate(times[np.argsort(times[:, 0], kind="stable")], axis=1)


def device_spans(folder: Path, start_ns: int, end_ns: int) -> dict[str, Any]:
    """Return `work`, `copies`, `calls` and `names` of a timeline, as the runtimes have written them to the folder.

    `gpu-*.json` are of `tritune_gpu.timeline`; `cpu-PROCESS-START.json` are profiles of ONNX Runtime, whose times
    are us from START on.
    """
    names: dict[str, int] = {}
    found: dict[str, list[list[int]]] = {"work": [], "copies": [], "calls": []}
    for path in sorted(folder.glob("gpu-*.json")):
        record = json.loads(path.read_bytes())
        for kind, rows in found.items():
            for start, end, name, *more in record[kind]:
                rows.append([start, end, names.setdefault(name, len(names)), *more])
    for row, path in enumerate(sorted(folder.glob("cpu-*.json"))):
        origin_ns = int(path.stem.rpartition("-")[2])
        for event in json.loads(path.read_bytes()):
            operator = event.get("args", {}).get("op_name")
            if event.get("cat") == "Node" and event["name"].endswith("_kernel_time") and operator:
                start = origin_ns + 1000 * event["ts"]
                number = names.setdefault(operator, len(names))
                found["work"].append([start, start + 1000 * event["dur"], number, row, 0])
    tables = {kind: np.array(rows, np.int64).reshape(-1, 5) for kind, rows in found.items()}
    inside = {kind: rows[(rows[:, 1] > start_ns) & (rows[:, 0] < end_ns)] for kind, rows in tables.items()}
    return {**inside, "names": [*names]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Where the time went. Shares are of the window, for instances of the window times their number.

    `stages` are the mean and p99 of each stage in ms, `requests_per_execution` a mean. `instances` and `device`
    are shares by what was done or why nothing was, which add up to 1; `device` is empty if it is not known.
    `graph_share` is of the kernels' time, `overlapped_share` of the copies' time beside a kernel, None without.
    `top` are the longest kernels or operators: name, share of the work's time, count, mean us.
    """

    requests: int
    requests_per_execution: float
    stages: Mapping[str, tuple[float, float]]
    instances: Mapping[str, float]
    device: Mapping[str, float]
    graph_share: float | None
    overlapped_share: float | None
    top: Sequence[tuple[str, float, int, float]]


def sums_of(line: Timeline, *, most: int = 10) -> Sums:
    """Return the sums of a timeline; `most` kernels or operators are named."""
    lengths = np.diff(line.requests, axis=1) / 1e6
    means, high = lengths.mean(axis=0), np.quantile(lengths, 0.99, axis=0)
    begun, copied, computed, ended = (line.executions[:, place] for place in range(4))
    ends = (line.requests[:, 3:5], line.executions[:, :4], line.work[:, :2], line.copies[:, :2])
    all_ends = np.concatenate(([line.start_ns, line.end_ns], *(one.ravel() for one in ends)))
    edges = np.unique(np.clip(all_ends, line.start_ns, line.end_ns))
    at, seconds = edges[:-1], np.diff(edges)
    whole = max(1, line.end_ns - line.start_ns)
    copying_in, computing, copying_out = (
        _running(at, *pair) for pair in ((begun, copied), (copied, computed), (computed, ended))
    )
    busy = copying_in + computing + copying_out
    waiting = _running(at, line.requests[:, 3], line.requests[:, 4]) > 0
    idle = np.maximum(0, line.instances - busy)

    def share(amount: NDArray[Any]) -> float:
        return float((amount * seconds).sum()) / whole

    slots = max(line.instances, 1)
    working, moving = (_running(at, spans[:, 0], spans[:, 1]) > 0 for spans in (line.work, line.copies))
    nothing = ~working & ~moving
    device = {
        "kernels" if line.on_gpu else "operators": share(working),
        "copies alone": share(moving & ~working),
        "idle: launch and Python": share(nothing & (computing > 0)),
        "idle: copies on the CPU": share(nothing & (computing == 0) & (busy > 0)),
        "idle: a batch is formed": share(nothing & (busy == 0) & waiting),
        "idle: no request": share(nothing & (busy == 0) & ~waiting),
    }
    took = line.work[:, 1] - line.work[:, 0]
    by_name = np.bincount(line.work[:, 2], weights=took, minlength=len(line.names))
    count = np.bincount(line.work[:, 2], minlength=len(line.names))
    total = max(1.0, float(took.sum()))
    us = by_name / np.maximum(1, 1000 * count)
    longest = [int(at) for at in np.argsort(-by_name)[:most] if count[at]]
    return Sums(
        requests=len(line.requests),
        requests_per_execution=float(line.executions[:, 4].mean()) if len(line.executions) else 0.0,
        stages={name: (float(means[place]), float(high[place])) for place, name in enumerate(STAGES)},
        instances={
            "copy in": share(copying_in) / slots,
            "compute": share(computing) / slots,
            "copy out": share(copying_out) / slots,
            "idle: a batch is formed": share(idle * waiting) / slots,
            "idle: no request": share(idle * ~waiting) / slots,
        },
        device={name: part for name, part in device.items() if part > 0} if len(line.work) else {},
        graph_share=float(took @ line.work[:, 4]) / total if line.on_gpu and len(took) else None,
        overlapped_share=share(moving & working) / share(moving) if moving.any() else None,
        top=[(line.names[at], by_name[at] / total, int(count[at]), us[at]) for at in longest],
    )


def _running(at: Times, start: Times, end: Times) -> NDArray[np.int64]:
    """Return how many of the spans run from each time on."""
    return np.searchsorted(np.sort(start), at, side="right") - np.searchsorted(np.sort(end), at, side="right")


def lanes(start: Times, end: Times) -> list[int]:
    """Return a row for each span so that none covers another; `start` ascends."""
    free: list[int] = []
    used: list[tuple[int, int]] = []
    rows = []
    for begin, finish in zip(start.tolist(), end.tolist(), strict=True):
        while used and used[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(used)[1])
        row = heapq.heappop(free) if free else len(used)
        heapq.heappush(used, (finish, row))
        rows.append(row)
    return rows


def trace_events(line: Timeline, most: int = MOST_DRAWN) -> Iterator[dict[str, Any]]:
    """Yield the events of Chrome's trace format, which Perfetto opens too; times in us from the window's start.

    Only the first part of the window is drawn if there were more than `most` events.
    """
    spans = (line.work, line.copies, line.calls)
    whole = 9 * len(line.requests) + 4 * len(line.executions) + sum(map(len, spans))
    end_ns = line.start_ns + round((line.end_ns - line.start_ns) * min(1.0, most / max(1, whole)))

    def event(process: int, row: int, name: str, start: int, end: int, **more: Any) -> dict[str, Any]:
        times = {"ts": (start - line.start_ns) / 1e3, "dur": max(0, end - start) / 1e3}
        return {"ph": "X", "pid": process, "tid": row, "name": name, **times, **({"args": more} if more else {})}

    device = "GPU" if line.on_gpu else "ONNX Runtime"
    for process, name in enumerate(("Requests", "Executions", device, "Copies", "Driver"), 1):
        yield {"ph": "M", "pid": process, "name": "process_name", "args": {"name": f"{process} {name}"}}
    drawn = line.requests[line.requests[:, 0] < end_ns]
    for number, (row, times) in enumerate(zip(lanes(drawn[:, 0], drawn[:, -1]), drawn.tolist(), strict=True)):
        yield event(1, row, f"request {number}", times[0], times[-1])
        for stage, (start, end) in zip(STAGES, pairwise(times), strict=True):
            if end > start:
                yield event(1, row, stage, start, end)
    drawn = line.executions[line.executions[:, 0] < end_ns]
    for row, (*times, size) in zip(lanes(drawn[:, 0], drawn[:, 3]), drawn.tolist(), strict=True):
        yield event(2, row, f"batch of {size}", times[0], times[-1], requests=size)
        for stage, (start, end) in zip(("copy in", "compute", "copy out"), pairwise(times), strict=True):
            yield event(2, row, stage, start, end)
    for process, of_one in enumerate(spans, 3):
        for start, end, name, row, _ in of_one[of_one[:, 0] < end_ns].tolist():
            yield event(process, row, line.names[name], start, end)


def trace_text(events: Iterable[Mapping[str, Any]]) -> str:
    """Return the text of a trace file, an event a line."""
    return '{"displayTimeUnit": "ms", "traceEvents": [\n' + ",\n".join(map(json.dumps, events)) + "\n]}\n"
