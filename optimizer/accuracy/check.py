"""Decide whether a variant's results are close enough to those of the fp32 model, and report why not.

A pass means "numerically close on these inputs", never "as accurate as before": that takes labelled data.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, Protocol

from optimizer.accuracy.metrics import Closeness, closeness
from optimizer.accuracy.thresholds import AccuracyRule, Thresholds
from optimizer.child import machine_limits
from optimizer.model.onnx_model import Model
from optimizer.model.ort_child import Tensors, run_feeds, run_model, session_of
from optimizer.model.samples import Samples, feeds_for
from optimizer.precision.names import Precision
from search.records.recommendation import AccuracyRecord, OutputAccuracyRecord

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from onnx import NodeProto


INPUTS = 256
"""At most 256 inputs are compared. Fewer show little about the top class: if all 256 agree, its agreement is at
least 98.8 %, with 95 % confidence."""

MIN_INPUTS = 16
LARGER_BATCH = 8
INPUTS_OF_FURTHER_SIZES = 64
"""At further batch sizes 64 inputs are compared, by their values: what is looked for is a wrong kernel."""

JUDGING_TIMEOUT_S = 600.0
"""A variant may take 300 s for its results at each of two batch sizes."""


class Runner(Protocol):
    """Computes a model's outputs: ONNX Runtime on a file, or an engine."""

    @property
    def name(self) -> str:
        """The name of the runner for the record: `onnxruntime-cpu`, `tensorrt-10.13`."""

    def run(self, feeds: Sequence[Mapping[str, NDArray[Any]]]) -> list[Tensors]:
        """Return all outputs for each of `feeds`, in order. Raises optimizer.errors.RunFailed."""


RunWithin = Callable[..., tuple[list[Tensors], float]]
"""Takes feeds, `least` and `budget_s`, as `OnnxCpuRunner.run_within` does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxCpuRunner:
    """ONNX Runtime on a CPU, in a process of its own. `threads` None: one per processor."""

    model: Model
    optimized: bool = True
    threads: int | None = None
    name: str = "onnxruntime-cpu"

    def run(self, feeds: Sequence[Mapping[str, NDArray[Any]]]) -> list[Tensors]:
        """Return all outputs for each of `feeds`, in order. Raises RunFailed."""
        fitting = feeds_for(self.model, feeds)
        return run_model(
            self.model.path, fitting, optimized=self.optimized, threads=self.threads, timeout_s=JUDGING_TIMEOUT_S
        )

    def run_within(
        self, feeds: Sequence[Mapping[str, NDArray[Any]]], *, least: int, budget_s: float
    ) -> tuple[list[Tensors], float]:
        """Return the outputs for the first of `feeds`, `least` at least, and the seconds that they took.

        It stops when `budget_s` is used. Raises RunFailed.
        """
        load = partial(session_of, self.model.path, optimized=self.optimized, threads=self.threads)
        fitting = feeds_for(self.model, feeds)
        return run_feeds(load, fitting, limits=machine_limits(), least=least, budget_s=budget_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The fp32 model's results for some samples, one request at a time, and facts about its outputs."""

    samples: Samples
    rows: tuple[Tensors, ...]  # for each sample
    classifying: frozenset[str]  # outputs with one score per class
    note: str  # on the number of inputs; "" if there are enough
    offered: int = 0  # the number of inputs, if there had been time for all

    def repeated(self, count: int) -> Reference:
        """Return the results for so many samples; after the last one they begin again."""
        rows = tuple(islice(cycle(self.rows), count))
        return replace(self, samples=self.samples.repeated(count), rows=rows)


def reference_of(
    run_within: RunWithin, samples: Samples, *, classifying: Collection[str], budget_s: float = math.inf
) -> Reference:
    """Run the fp32 model on as many of the samples as the budget allows, and on 16 at least. Raises RunFailed.

    A slower model is judged on fewer inputs, and the record notes it.
    """
    rows, seconds = run_within(samples.feeds(1), least=MIN_INPUTS, budget_s=budget_s)
    used = samples.first(len(rows))
    return Reference(
        samples=used,
        rows=tuple(rows),
        classifying=frozenset(classifying),
        note=_note(used, samples, seconds / len(rows)),
        offered=samples.count,
    )


def _note(used: Samples, offered: Samples, each_s: float) -> str:
    if used.count >= INPUTS:
        return ""
    if used.count < offered.count:
        return f"{used.count} instead of {INPUTS} inputs: one takes {each_s:.2g} s on this CPU"
    return f"{used.count} instead of {INPUTS} inputs: no more were given"


def judge(
    runner: Runner,
    precision: Precision,
    reference: Reference,
    rule: AccuracyRule,
    *,
    batch_sizes: Sequence[int] = (1, LARGER_BATCH),
    further_sizes: Collection[int] = (),
) -> AccuracyRecord:
    """Compare the results of `runner` with the reference, at each batch size, output by output.

    If there was no time for all inputs, as many may have another top class as of all: the fewer must not refuse
    what all would pass. At the `further_sizes` fewer inputs are compared. Inputs that are fewer than a batch has
    items are used over again. Raises RunFailed.
    """
    count = reference.samples.count
    thresholds = rule.thresholds(precision)
    if thresholds.top1 is not None and count < reference.offered:
        thresholds = replace(thresholds, top1=1 - (1 - thresholds.top1) * reference.offered / count)
    sizes = batch_sizes if reference.samples.batched else batch_sizes[:1]
    compared = {size: reference.repeated(max(count, size)) for size in sizes}
    if reference.samples.batched:
        few = min(count, INPUTS_OF_FURTHER_SIZES)
        further = sorted({*further_sizes} - {*sizes})
        compared |= {size: reference.repeated(max(few, size)) for size in further}
    feeds = {size: each.samples.feeds(size) for size, each in compared.items()}
    # One run for all sizes: most of a large model's time is spent on loading it.
    results = iter(runner.run([feed for each in feeds.values() for feed in each]))
    outputs: list[OutputAccuracyRecord] = []
    problems: list[str] = []
    for size, given in feeds.items():
        asked = thresholds if size in sizes else replace(thresholds, top1=None)
        for name, seen in _compared(list(islice(results, len(given))), compared[size], size).items():
            problem = shortcoming(seen, asked)
            outputs.append(_to_record(name, size, seen, passed=not problem))
            if problem:
                problems.append(f"output {name} at batch {size}: {problem}")
    return AccuracyRecord(
        precision=precision,
        runner=runner.name,
        level=rule.level,
        passed=not problems,
        reason=problems[0] if problems else "",
        inputs=count,
        input_source=reference.samples.source,
        note=reference.note,
        outputs=tuple(outputs),
    )


def _compared(results: Sequence[Tensors], reference: Reference, batch_size: int) -> dict[str, Closeness]:
    compared = {}
    for name in reference.rows[0]:
        expected = [row[name] for row in reference.rows]
        actual = [row for result in results for row in _rows(result, name, batch_size, reference)]
        if len(actual) != len(expected):
            actual = [array[:0] for array in expected]  # of another shape: all of it counts as missing
        compared[name] = closeness(expected, actual, classes=name in reference.classifying)
    return compared


def _rows(result: Tensors, name: str, batch_size: int, reference: Reference) -> list[NDArray[Any]]:
    """Return the results of one feed, one by one, in the form of the reference."""
    if name not in result:
        return []
    array = result[name]
    if batch_size == 1 or not reference.samples.batched:
        return [array]
    return [array[at : at + 1] for at in range(len(array))]


def shortcoming(seen: Closeness, thresholds: Thresholds) -> str:
    """Return the first figure that misses its threshold, with the threshold; "" if there is none."""
    if seen.non_finite:
        return f"{seen.non_finite} elements are NaN, infinite or missing"
    least = (
        ("SQNR", seen.sqnr_db, thresholds.sqnr_db, "{:.1f} dB"),
        ("cosine", seen.cosine, thresholds.cosine, "{:.6f}"),
        ("top-1 agreement", seen.top1_agreement, thresholds.top1, "{:.2%}"),
    )
    for label, value, threshold, form in least:
        if value is not None and threshold is not None and not value >= threshold:
            return f"{label} {form.format(value)} is below {form.format(threshold)}"
    largest, allowed = seen.max_relative_error, thresholds.max_error
    if largest is not None and allowed is not None and not largest <= allowed:
        return f"relative error {largest:.3g} is above {allowed:.3g}"
    return ""


def _to_record(name: str, batch_size: int, seen: Closeness, *, passed: bool) -> OutputAccuracyRecord:
    return OutputAccuracyRecord(
        output=name,
        batch_size=batch_size,
        passed=passed,
        sqnr_db=seen.sqnr_db if seen.sqnr_db is not None and math.isfinite(seen.sqnr_db) else None,
        exact=not seen.non_finite
        and (seen.sqnr_db == math.inf or (seen.sqnr_db is None and seen.top1_agreement == 1)),
        cosine=seen.cosine,
        max_relative_error=seen.max_relative_error,
        top1_agreement=seen.top1_agreement,
        non_finite=seen.non_finite,
    )


_LOOKS_THROUGH = {"Cast", "Identity", "Reshape", "Flatten", "Squeeze", "QuantizeLinear", "DequantizeLinear", "Add"}
_ENDS_CLASSIFIER = {"Softmax", "LogSoftmax", "Gemm", "MatMul"}
_NO_CLASSES = re.compile(r"embed|pool|feature|hidden|vector|encod", re.IGNORECASE)


def classifying_outputs(model: Model) -> frozenset[str]:
    """Return outputs of shape (batch, classes) that end in a softmax or a linear layer.

    Outputs with names like those of embeddings are left out.
    """
    makers = {name: node for node in model.graph.outline.graph.node for name in node.output}
    rank = 2 if model.batch != "none" else 1
    return frozenset(
        tensor.name
        for tensor in model.all_outputs
        if len(tensor.dims) in {rank, 2}
        and tensor.sized[-1:] != (1,)
        and not _NO_CLASSES.search(tensor.name)
        and _ends(makers, tensor.name) in _ENDS_CLASSIFIER
    )


def _ends(makers: dict[str, NodeProto], name: str) -> str:
    """Return the operator that made a tensor, seen through those that change little; "" if there is none."""
    for _ in range(len(makers)):
        node = makers.get(name)
        if node is None or node.op_type not in _LOOKS_THROUGH:
            return node.op_type if node is not None else ""
        name = next((source for source in node.input if source in makers), "")
    return ""
