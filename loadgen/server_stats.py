"""The server's own view of a run: Triton's statistics before it, subtracted from those after."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_NS_PER_MS = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTimings:
    """What was executed at one batch size: how often, and the mean ms of each stage of one execution."""

    batch_size: int
    executions: int
    input_ms: float
    infer_ms: float
    output_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTimings:
    """Mean ms a successful request spent in each stage of the server; `total_ms` from arrival to answer.

    `mean_batch_size` is inferences per execution; None where nothing was executed. `batches` ascends by size
    and is empty where the server keeps no such table.
    """

    requests: int
    failures: int
    queue_ms: float
    input_ms: float
    infer_ms: float
    output_ms: float
    total_ms: float
    mean_batch_size: float | None
    batches: tuple[BatchTimings, ...] = ()

    @property
    def rest_ms(self) -> float:
        """What the server took besides the stages: to take the request over, and to send the answer."""
        return max(0.0, self.total_ms - self.queue_ms - self.input_ms - self.infer_ms - self.output_ms)


def timings_between(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> ServerTimings | None:
    """The difference of two answers of `GET /v2/models/M/stats`.

    All versions that answered are taken together. None where one of the two is missing, where nothing was
    served between them, or where a counter fell: the model was loaded anew in between.
    """
    if before is None or after is None:
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
    )


class _Counters:
    """What one model version's counters grew by."""

    def __init__(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        self._before = before
        self._after = after

    @property
    def restarted(self) -> bool:
        return self.top("execution_count") < 0 or self.of("success", "count") < 0

    def top(self, name: str) -> int:
        return int(self._after.get(name, 0)) - int(self._before.get(name, 0))

    def of(self, stage: str, unit: str) -> int:
        before = self._before.get("inference_stats", {}).get(stage, {})
        after = self._after.get("inference_stats", {}).get(stage, {})
        return int(after.get(unit, 0)) - int(before.get(unit, 0))

    def batches(self) -> dict[int, tuple[int, int, int, int]]:
        """Executions, input ns, infer ns, output ns of each batch size that was executed."""
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
    return tuple(
        BatchTimings(
            batch_size=size,
            executions=count,
            input_ms=put / count / _NS_PER_MS,
            infer_ms=infer / count / _NS_PER_MS,
            output_ms=out / count / _NS_PER_MS,
        )
        for size, (count, put, infer, out) in sorted(summed.items())
    )


def _versions(statistics: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {str(model.get("version", "")): model for model in statistics.get("model_stats", ())}


def _by_size(model: Mapping[str, Any]) -> dict[int, tuple[int, int, int, int]]:
    return {
        int(row["batch_size"]): (
            int(row.get("compute_infer", {}).get("count", 0)),
            int(row.get("compute_input", {}).get("ns", 0)),
            int(row.get("compute_infer", {}).get("ns", 0)),
            int(row.get("compute_output", {}).get("ns", 0)),
        )
        for row in model.get("batch_stats", ())
    }
