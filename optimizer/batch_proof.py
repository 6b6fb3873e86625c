"""The proof that a leading dimension is a batch: samples come out of a batch as they come out alone."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from optimizer.onnx_check import plain, shortened
from optimizer.onnx_run import RunFailed, run_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from optimizer.onnx_model import ModelTensor
    from optimizer.onnx_run import Tensors

SAMPLES = 4
DISTINCT = 5.0
"""Rows this many tolerances apart are different for sure: had they been mixed up, it would show."""
UNEQUAL_INTEGERS = 1e-3
"""Share of integer results (classes of pixels, say) that rounding may tip over."""

INNER_ELEMENTS = 4096
"""So many elements of a sample are compared inside; dozens of whole layers would fill the memory."""

_FLOATS = {"FP64": np.float64, "FP32": np.float32, "FP16": np.float16}
_INTEGERS = {
    "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64,
    "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64, "BOOL": np.bool_,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Whether batching is sound, and why."""

    holds: bool
    reason: str


class Disproved(Exception):
    """Batching is not sound, or cannot be shown to be; the message says why."""


def prove_batching(
    original: Path,
    candidate: Path,
    inputs: Sequence[ModelTensor],
    *,
    tolerance: float,
    same_level: bool,
    probes: Callable[[], tuple[Path, Path, Sequence[str]]],
) -> Proof:
    """Run both files on the same samples, one by one and as one batch, and compare row by row.

    `original` and `candidate` may be the same file. `tolerance` is relative to the largest value of an output; for
    `same_level` see `sample`. Where samples give nearly the same output (untrained weights, say), mixed-up rows
    would go unnoticed. Then `probes` makes copies of both files that return inner tensors too, and names these in
    the order of computation; the last one that still tells the samples apart is compared instead.
    """
    try:
        samples = [sample(inputs, seed, same_level=same_level) for seed in range(SAMPLES)]
        reference = _run(original, samples, "one sample alone")
        results = _rows_of(candidate, samples, reference[0].keys(), alone=candidate != original)
        _compare(reference, results, tolerance)
        compared = "at its outputs"
        if not any(_tells_apart(reference, name, tolerance) for name in reference[0]):
            compared = _compare_inside(*probes(), samples, tolerance)
    except Disproved as why:
        return Proof(holds=False, reason=str(why))
    text = f"a batch of {SAMPLES} gave the same rows as {SAMPLES} single runs, compared {compared}"
    return Proof(holds=True, reason=text)


def check_runs_whole(path: Path, inputs: Sequence[ModelTensor]) -> None:
    """Run the model on random inputs of all its sizes, the leading ones included. Raises Disproved.

    Inputs of a type that numpy does not have are not tried.
    """
    if any(tensor.datatype not in {*_FLOATS, *_INTEGERS, "UINT8"} for tensor in inputs):
        return
    shapes = ", ".join(f"{tensor.name} ({', '.join(map(str, tensor.sized))})" for tensor in inputs)
    _run(path, [sample(inputs, 0, same_level=True, whole=True)], f"inputs of the shapes {shapes}")


def sample(inputs: Sequence[ModelTensor], seed: int, *, same_level: bool, whole: bool = False) -> Tensors:
    """Random inputs with a leading 1, or with their own leading size if `whole`.

    Seeds differ in level and spread too, lest averages make them alike; with `same_level` they do not, because
    quantized models scale a whole batch by its largest value. Integers are 0 or 1: a valid token, mask and segment
    in any model.
    """
    random = np.random.default_rng(seed)
    level = 1.0 if same_level else float(seed)
    feed: Tensors = {}
    for tensor in inputs:
        sizes = tensor.sized if whole else (1, *tensor.sized[1:])
        shape = tuple(int(size) for size in sizes)
        if tensor.datatype in _FLOATS:
            values = random.standard_normal(shape) * (1 + level) / 2 + level / 2
            feed[tensor.name] = values.astype(_FLOATS[tensor.datatype])
        elif tensor.datatype in _INTEGERS:
            chosen = random.random(shape) < 0.35 + 0.15 * seed
            feed[tensor.name] = chosen.astype(_INTEGERS[tensor.datatype])
        elif tensor.datatype == "UINT8":
            feed[tensor.name] = random.integers(0, round(64 * (1 + level)), shape, dtype=np.uint8)
        else:
            raise Disproved(f"input {tensor.name} is {tensor.datatype}, which cannot be tried out here")
    return feed


def _run(path: Path, feeds: Sequence[Tensors], what: str, *, thinned_to: int | None = None) -> list[Tensors]:
    try:
        return run_model(path, feeds, thinned_to=thinned_to)
    except RunFailed as error:
        raise Disproved(f"ONNX Runtime cannot run {what}: {shortened(plain(error.reason))}") from error


def _rows_of(
    path: Path,
    samples: Sequence[Tensors],
    names: Iterable[str],
    *,
    alone: bool,
    thinned_to: int | None = None,
) -> list[tuple[str, list[Tensors]]]:
    """What the file makes of all samples in one batch, and of each alone if asked: (in words, row by row)."""
    batch = {name: np.concatenate([feed[name] for feed in samples]) for name in samples[0]}
    feeds = [*(samples if alone else ()), batch]
    *single, together = _run(path, feeds, f"a batch of {len(samples)}", thinned_to=thinned_to)
    for name in names:
        if together[name].shape[:1] != (len(samples),):
            raise Disproved(f"output {name} has shape {together[name].shape} for a batch of {len(samples)}")
    rows = [{name: together[name][row : row + 1] for name in names} for row in range(len(samples))]
    in_batch = (f"in a batch of {len(samples)}", rows)
    return [("alone", single), in_batch] if alone else [in_batch]


def _compare(reference: list[Tensors], results: list[tuple[str, list[Tensors]]], tolerance: float) -> None:
    for how, rows in results:
        for number, (expected, actual) in enumerate(zip(reference, rows, strict=True), start=1):
            for name in expected.keys() & actual.keys():
                problem = difference(expected[name], actual[name], tolerance)
                if problem:
                    raise Disproved(f"sample {number} comes out differently {how}: output {name} {problem}")


def difference(expected: NDArray[Any], actual: NDArray[Any], tolerance: float) -> str:
    """How two results differ beyond `tolerance`, in words; "" where they do not. NaN equals NaN."""
    if expected.shape != actual.shape:
        return f"has shape {actual.shape} instead of {expected.shape}"
    if expected.dtype.kind != "f":
        unequal = float(np.mean(expected != actual)) if expected.size else 0.0
        return f"differs in {unequal:.2%} of its elements" if unequal > UNEQUAL_INTEGERS else ""
    off = _distance(expected, actual)
    return f"is off by {off:.2%} of its largest value" if not off <= tolerance else ""


def _distance(expected: NDArray[Any], actual: NDArray[Any]) -> float:
    """The largest difference over the largest value of `expected`; inf where only one of the two is finite."""
    a, b = expected.astype(np.float64), actual.astype(np.float64)
    finite = np.isfinite(a)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(b[finite]).all():
        return np.inf
    largest = np.abs(a[finite]).max(initial=0.0)
    gap = np.abs(a[finite] - b[finite]).max(initial=0.0)
    return float(gap / largest) if largest > 0 else float(np.inf if gap > 0 else 0.0)


def _tells_apart(results: Sequence[Tensors], name: str, tolerance: float) -> bool:
    """Whether every two samples give clearly different results."""
    arrays = [result[name] for result in results]
    if any(array.shape != arrays[0].shape for array in arrays) or arrays[0].dtype.kind not in "fiub":
        return False
    if arrays[0].dtype.kind != "f":
        return all(np.mean(a != b) > DISTINCT * UNEQUAL_INTEGERS for a, b in combinations(arrays, 2))
    finite = all(np.isfinite(array).all() for array in arrays)
    return finite and all(_distance(a, b) > DISTINCT * tolerance for a, b in combinations(arrays, 2))


def _compare_inside(
    original: Path, candidate: Path, names: Sequence[str], samples: Sequence[Tensors], tolerance: float
) -> str:
    """Compare the last inner tensor that tells the samples apart; returns where that is, in words."""
    reference = _run(original, samples, "the model with its inner tensors", thinned_to=INNER_ELEMENTS)
    telling = [
        name
        for name in names
        if name in reference[0]
        and reference[0][name].shape[:1] == (1,)
        and _tells_apart(reference, name, tolerance)
    ]
    if not telling:
        raise Disproved("its outputs hardly depend on its inputs, so nothing can be compared")
    witness = telling[-1]
    inner = [{witness: result[witness]} for result in reference]
    results = _rows_of(candidate, samples, [witness], alone=False, thinned_to=INNER_ELEMENTS)
    _compare(inner, results, tolerance)
    return f"at {witness} inside (its outputs hardly differ between samples)"
