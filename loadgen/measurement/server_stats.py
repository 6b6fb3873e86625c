"""Compute the server's own view of a run: Triton's statistics after it minus those before."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from loadgen.errors import LoadError
from loadgen.json_values import Unusable, whole_number
from loadgen.printable import printable
from loadgen.spec.target import Target
from loadgen.wire.questions import statistics_of

_NS_PER_MS = 1e6
_STAGES = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
_CACHE = "cache_hit"
_MAX_ROWS = 10_000
_UNREADABLE = "unreadable"

COLD_MS, COLD_FACTOR = 50.0, 2.0
"""A batch size is cold if its executions took twice as long as those of a larger size, and 50 ms more in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTimings:
    """The executions at one batch size: their number, and the mean ms of each stage of one execution.

    `cold`: none of this size came before, since the model was loaded, and they were much slower than larger ones.
    Libraries of GPUs plan a size when they first meet it, which takes 0.1 to 1.5 s.
    """

    batch_size: int
    executions: int
    input_ms: float
    infer_ms: float
    output_ms: float
    cold: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTimings:
    """Mean ms that a successful request spent in each stage; `total_ms` is from arrival to response.

    `mean_batch_size` is inferences per execution; None if nothing was executed. `batches` ascends by size and is
    empty if the server has no such table. `cache_hits` counts the requests that Triton's response cache answered.
    """

    requests: int
    failures: int
    queue_ms: float
    input_ms: float
    infer_ms: float
    output_ms: float
    total_ms: float
    mean_batch_size: float | None
    batches: tuple[BatchTimings, ...]
    cache_hits: int = 0

    @property
    def cold_sizes(self) -> tuple[int, ...]:
        """The batch sizes that were executed for the first time, and slowly, ascending."""
        return tuple(row.batch_size for row in self.batches if row.cold)

    @property
    def rest_ms(self) -> float:
        """The time outside the stages: to receive the request and to send the response."""
        return max(0.0, self.total_ms - self.queue_ms - self.input_ms - self.infer_ms - self.output_ms)


def read_statistics(target: Target) -> dict[str, Any] | None:
    """Return the model's counters for `timings_between`; None if the server has none. Raises nothing.

    They are optional: if the response is malformed or late, the result holds the reason, for `statistics_remarks`.
    """
    try:
        document = statistics_of(target)
        return None if document is None else counters_of(document)
    except LoadError as error:
        reason = str(error).partition("\n")[0]
    except (ValueError, RecursionError) as error:
        reason = f"{target.url} answered with statistics that cannot be read ({printable(str(error), most=300)})"
    return unreadable(reason)


def unreadable(reason: str) -> dict[str, Any]:
    """Return a placeholder for statistics that could not be read."""
    return {_UNREADABLE: reason}


def counters_of(document: object) -> dict[str, Any]:
    """Return the used part of a response to `GET /v2/models/M/stats`, its numbers checked. Raises Unusable."""
    models = _rows(document, "model_stats")
    return {"model_stats": [_checked_model(model) for model in models]}


def statistics_remarks(*statistics: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return a remark for users if statistics could not be read: they are missing, and nothing else is."""
    reasons = [one[_UNREADABLE] for one in statistics if one is not None and _UNREADABLE in one]
    return tuple(f"the server's own figures are left out: {reason}" for reason in reasons[:1])


def cold_text(timings: ServerTimings | None) -> str:
    """Return a sentence for users that names the cold batch sizes; empty if there are none."""
    if timings is None or not timings.cold_sizes:
        return ""
    sizes = ", ".join(map(str, timings.cold_sizes))
    return f"the server executed batches of {sizes} for the first time since it loaded the model, and slowly"


def timings_between(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> ServerTimings | None:
    """Return the difference of two results of `counters_of`, over all versions that answered.

    None if one of the two is missing or unreadable, if nothing was served between them, or if a counter fell: the
    model was reloaded in between.
    """
    if before is None or after is None or _UNREADABLE in before or _UNREADABLE in after:
        return None
    old, new = _versions(before), _versions(after)
    parts = [_Counters(old.get(version, {}), new[version]) for version in new]
    if any(part.restarted for part in parts):
        return None
    requests = sum(part.of("success", "count") for part in parts)
    if requests == 0:
        return None

    def stage_ms(stage: str) -> float:
        return sum(part.of(stage, "ns") for part in parts) / requests / _NS_PER_MS

    executions = sum(part.top("execution_count") for part in parts)
    inferences = sum(part.top("inference_count") for part in parts)
    return ServerTimings(
        requests=requests,
        failures=sum(part.of("fail", "count") for part in parts),
        queue_ms=stage_ms("queue"),
        input_ms=stage_ms("compute_input"),
        infer_ms=stage_ms("compute_infer"),
        output_ms=stage_ms("compute_output"),
        total_ms=stage_ms("success"),
        mean_batch_size=inferences / executions if executions else None,
        batches=_batch_table(parts),
        cache_hits=max(0, sum(part.of(_CACHE, "count") for part in parts)),
    )


def stand_still(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> bool:
    """True if the counters were read twice, for the same versions, and no request was counted between them."""
    if before is None or after is None or not after.get("model_stats"):
        return False
    return before == after


class _Counters:
    """The growth of one model version's counters."""

    def __init__(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        self._before = before
        self._after = after

    @property
    def restarted(self) -> bool:
        tops = (self.top("execution_count"), self.top("inference_count"))
        return min(*tops, *(self.of(stage, unit) for stage in _STAGES for unit in ("count", "ns"))) < 0

    def top(self, name: str) -> int:
        return int(self._after.get(name, 0) - self._before.get(name, 0))

    def of(self, stage: str, unit: str) -> int:
        before = self._before.get("inference_stats", {}).get(stage, {})
        after = self._after.get("inference_stats", {}).get(stage, {})
        return int(after.get(unit, 0) - before.get(unit, 0))

    def known_sizes(self) -> set[int]:
        """Return the batch sizes that were executed before."""
        return {size for size, (count, *_) in _by_size(self._before).items() if count > 0}

    def batches(self) -> dict[int, tuple[int, int, int, int]]:
        """Return executions, input ns, infer ns and output ns per batch size that was executed."""
        before = _by_size(self._before)
        rows = {}
        for size, row in _by_size(self._after).items():
            grown = tuple(new - old for new, old in zip(row, before.get(size, (0, 0, 0, 0)), strict=True))
            if grown[0] > 0:
                rows[size] = (grown[0], grown[1], grown[2], grown[3])
        return rows


def _batch_table(parts: list[_Counters]) -> tuple[BatchTimings, ...]:
    summed: dict[int, tuple[int, int, int, int]] = {}
    for part in parts:
        for size, (count, put, infer, out) in part.batches().items():
            known = summed.get(size, (0, 0, 0, 0))
            summed[size] = (known[0] + count, known[1] + put, known[2] + infer, known[3] + out)
    before = {size for part in parts for size in part.known_sizes()}
    rows: list[BatchTimings] = []
    for size, (count, put, infer, out) in sorted(summed.items(), reverse=True):
        row = BatchTimings(
            batch_size=size,
            executions=count,
            input_ms=put / count / _NS_PER_MS,
            infer_ms=infer / count / _NS_PER_MS,
            output_ms=out / count / _NS_PER_MS,
        )
        of_larger_ms = min((larger.infer_ms for larger in rows), default=math.inf)
        slow = row.infer_ms >= COLD_FACTOR * of_larger_ms and count * (row.infer_ms - of_larger_ms) >= COLD_MS
        rows.append(replace(row, cold=size not in before and slow))
    return tuple(rows[::-1])


def _versions(statistics: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {model["version"]: model for model in statistics.get("model_stats", ())}


def _by_size(model: Mapping[str, Any]) -> dict[int, tuple[int, int, int, int]]:
    return {
        row["batch_size"]: (
            row["compute_infer"]["count"],
            row["compute_input"]["ns"],
            row["compute_infer"]["ns"],
            row["compute_output"]["ns"],
        )
        for row in model.get("batch_stats", ())
    }


def _checked_model(model: object) -> dict[str, Any]:
    described = _object(model, "model_stats")
    stages = _object(described.get("inference_stats", {}), "inference_stats")
    return {
        "version": str(described.get("version", ""))[:100],
        "inference_count": _counter(described, "inference_count"),
        "execution_count": _counter(described, "execution_count"),
        "inference_stats": {stage: _checked_stage(stages, stage) for stage in (*_STAGES, _CACHE)},
        "batch_stats": [_checked_batch(row) for row in _rows(described, "batch_stats")],
    }


def _checked_batch(row: object) -> dict[str, Any]:
    described = _object(row, "batch_stats")
    stages = {stage: _checked_stage(described, stage) for stage in _STAGES[3:]}
    return {"batch_size": whole_number(described.get("batch_size"), least=1), **stages}


def _checked_stage(document: Mapping[str, Any], stage: str) -> dict[str, int]:
    described = _object(document.get(stage, {}), stage)
    return {"count": _counter(described, "count"), "ns": _counter(described, "ns")}


def _counter(document: Mapping[str, Any], name: str) -> int:
    """Return a counter, 0 if absent: gRPC omits zeros."""
    try:
        return whole_number(document.get(name, 0), least=0)
    except Unusable as error:
        raise Unusable(f"{name}: {error}") from None


def _rows(document: object, name: str) -> list[object]:
    rows = _object(document, "the statistics").get(name, [])
    if not isinstance(rows, list) or len(rows) > _MAX_ROWS:
        raise Unusable(f"{name} is not a list, or has over {_MAX_ROWS:,} entries")
    return rows


def _object(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise Unusable(f"{what}: not a JSON object")
    return value
