"""Compute the server's own view of a run: Triton's statistics after it minus those before."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from loadgen.errors import LoadError
from loadgen.json_values import Unusable, json_list, json_object, whole_number
from loadgen.spec.target import Target, stranger_text
from loadgen.wire.questions import statistics_of

_NS_PER_MS = 1e6
_COMPUTED = ("compute_input", "compute_infer", "compute_output")
_STAGES = ("success", "fail", "queue", *_COMPUTED)
_RISING = (
    "inference_count",
    "execution_count",
    *(f"{stage} {unit}" for stage in _STAGES for unit in ("count", "ns")),
)
_EXECUTIONS = " executions"
_CACHE = "cache_hit"
UNREADABLE = "unreadable"
"""In place of counters: the reason why they could not be read."""

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
        why = stranger_text(str(error), target.secrets)
        reason = f"{target.url} answered with statistics that cannot be read ({why})"
    return {UNREADABLE: reason}


def counters_of(document: object) -> dict[str, Any]:
    """Return the used counters of a response to `GET /v2/models/M/stats` by version. Raises Unusable."""
    models = (
        json_object(model, "model_stats")
        for model in json_list(json_object(document, "statistics"), "model_stats")
    )
    return {"versions": {str(model.get("version", ""))[:100]: _counters(model) for model in models}}


def statistics_remarks(*statistics: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return a remark for users if statistics could not be read: they are missing, and nothing else is."""
    reasons = [one[UNREADABLE] for one in statistics if one is not None and UNREADABLE in one]
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
    if before is None or after is None or UNREADABLE in before or UNREADABLE in after:
        return None
    old, new = before["versions"], after["versions"]
    grown: Counter[str] = Counter()
    for version, counters in new.items():
        one = Counter(counters)
        one.subtract(old.get(version, {}))
        if any(one[name] < 0 for name in _RISING):
            return None
        grown.update(one)
    requests = grown["success count"]
    if requests == 0:
        return None

    def stage_ms(stage: str) -> float:
        return grown[f"{stage} ns"] / requests / _NS_PER_MS

    executions = grown["execution_count"]
    return ServerTimings(
        requests=requests,
        failures=grown["fail count"],
        queue_ms=stage_ms("queue"),
        input_ms=stage_ms("compute_input"),
        infer_ms=stage_ms("compute_infer"),
        output_ms=stage_ms("compute_output"),
        total_ms=stage_ms("success"),
        mean_batch_size=grown["inference_count"] / executions if executions else None,
        batches=_batch_table(grown, {name for one in old.values() for name, count in one.items() if count}),
        cache_hits=max(0, grown[f"{_CACHE} count"]),
    )


def stand_still(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> bool:
    """True if the counters were read twice, for the same versions, and no request was counted between them."""
    return after is not None and before == after and bool(after.get("versions"))


def _batch_table(grown: Mapping[str, int], known: Collection[str]) -> tuple[BatchTimings, ...]:
    """Return the executions at each batch size. `known` are the counters that were not 0 before."""
    names = (name for name, count in grown.items() if name.endswith(_EXECUTIONS) and count > 0)
    rows: list[BatchTimings] = []
    for size in sorted((int(name.removesuffix(_EXECUTIONS)) for name in names), reverse=True):
        executed = f"{size}{_EXECUTIONS}"
        count = grown[executed]
        input_ms, infer_ms, output_ms = (grown[f"{size} {stage}"] / count / _NS_PER_MS for stage in _COMPUTED)
        of_larger_ms = min((larger.infer_ms for larger in rows), default=math.inf)
        slow = infer_ms >= COLD_FACTOR * of_larger_ms and count * (infer_ms - of_larger_ms) >= COLD_MS
        rows.append(
            BatchTimings(
                batch_size=size,
                executions=count,
                input_ms=input_ms,
                infer_ms=infer_ms,
                output_ms=output_ms,
                cold=executed not in known and slow,
            )
        )
    return tuple(rows[::-1])


def _counters(model: Mapping[str, Any]) -> dict[str, int]:
    """Return the counters of one version, each under one name: `success ns`, `8 executions`, `8 compute_infer`."""
    stages = json_object(model.get("inference_stats", {}), "inference_stats")
    found = {name: _counter(model, name) for name in ("inference_count", "execution_count")}
    for stage in (*_STAGES, _CACHE):
        described = json_object(stages.get(stage, {}), stage)
        found |= {f"{stage} {unit}": _counter(described, unit) for unit in ("count", "ns")}
    for row in json_list(model, "batch_stats"):
        batch = json_object(row, "batch_stats")
        size = whole_number(batch.get("batch_size"), least=1)
        parts = {stage: json_object(batch.get(stage, {}), stage) for stage in _COMPUTED}
        found[f"{size}{_EXECUTIONS}"] = _counter(parts["compute_infer"], "count")
        found |= {f"{size} {stage}": _counter(part, "ns") for stage, part in parts.items()}
    return found


def _counter(document: Mapping[str, Any], name: str) -> int:
    """Return a counter, 0 if absent: gRPC omits zeros."""
    try:
        return whole_number(document.get(name, 0), least=0)
    except Unusable as error:
        raise Unusable(f"{name}: {error}") from None
