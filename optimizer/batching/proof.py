"""Prove that a leading dimension is a batch: samples give the same results in a batch as alone."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.traffic.model_info import NUMPY_TYPES
from optimizer.errors import RunFailed, UnsupportedModel
from optimizer.model.checks import plain, shortened
from optimizer.model.graph_inputs import InputType
from optimizer.model.onnx_model import Model, ModelTensor
from optimizer.model.ort_child import UNEQUAL_INTEGERS, Tensors, difference, distance, run_model
from search.choices import LARGEST_BATCH

PROOF_SAMPLES, PROOF_SIZES = 4, (2, 3, 4)
"""Four samples, in batches of 2, 3 and 4, are compared with single runs."""

PROOF_S, PROOF_BYTES = 10.0, 1 << 28
"""A larger batch is tried too, up to the largest that is served, within 10 s and 256 MB of tensors."""

DISTINCT = 5.0
"""Results more than 5 tolerances apart are distinct, so that mixed-up rows would be noticed; closer ones prove
nothing."""

GIVEN_SAMPLES, GIVEN_PAIRS = 16, 1 / 3
"""Of 16 given samples, a third of the pairs have to differ: a tree with two leaves has two outputs only."""

CAST_TOLERANCE = 1e-4
"""The same fp32 graph behind a cast: its results may differ by this share of the largest value."""

_NOTHING = "its outputs hardly depend on its inputs, so nothing can be compared"
_EQUAL = "the same in all given inputs, so mixed-up rows of it would go unnoticed"
_TRIED = NUMPY_TYPES.keys() - {"BF16", "BYTES"}
"""The types of inputs that can be tried with random values."""


class Disproved(Exception):
    """Batching is not sound, or cannot be shown to be; the message is the reason."""


class DoesNotRun(Disproved):
    """ONNX Runtime refuses these samples."""


def prove_batching(
    original: Path,
    candidate: Path,
    inputs: Sequence[ModelTensor],
    *,
    given: Sequence[Tensors] = (),
    rows: int = 1,
    tolerance: float,
    same_level: bool,
) -> str:
    """Run both files on the same samples, one by one and in batches, and return how the rows compare, in words.

    The samples are random, and the `given` ones, of one shape with a leading 1: only these if inputs are texts or
    random samples do not run, and none of these for `same_level` if random samples suffice.

    `original`, which takes `rows` samples at a time, and `candidate` may be the same file. `tolerance` is relative
    to the largest value of an output; for `same_level` see `sample`. If samples give nearly the same output (as
    with untrained weights), mixed-up rows would go unnoticed, and nothing is proven. Raises Disproved.
    """
    compare_batches = partial(_compare_batches, original, candidate, rows=rows, tolerance=tolerance)
    samples, reference = _samples_alone(original, inputs, given, rows, same_level=same_level)
    began_s = time.monotonic()
    compare_batches(samples, reference)
    row_s = (time.monotonic() - began_s) / (rows + sum(PROOF_SIZES))
    largest = _largest(samples[0], reference[0], row_s)
    if largest > PROOF_SIZES[-1] and not _compare_largest(candidate, samples, reference, largest, tolerance):
        largest = 0
    told = any(_tells_apart(reference, name, tolerance) for name in reference[0])
    compared = "at its outputs" if told else ""
    if given and not (same_level and told):
        given, alone = given[: max(PROOF_SAMPLES, int(PROOF_S / row_s))], list[Tensors]()
        with suppress(DoesNotRun):  # the load will show it
            given, alone = _those_that_run(original, given, rows)
        if alone:
            compare_batches(given, alone, sizes=(*PROOF_SIZES, GIVEN_SAMPLES))
            if largest > GIVEN_SAMPLES:
                _compare_largest(candidate, given, alone, largest, tolerance)
            if any(_tells_apart(alone, name, tolerance, pairs=GIVEN_PAIRS) for name in alone[0]):
                compared = "at its outputs for the given inputs"
    if not compared:
        raise Disproved(f"{_NOTHING} ({'samples that differ more' if given else '--input-data'} may help)")
    sizes = ", ".join(map(str, PROOF_SIZES)) + (f" and {largest}" if largest > PROOF_SIZES[-1] else "")
    return f"batches of {sizes} gave the same rows as single runs, compared {compared}"


def _samples_alone(
    original: Path, inputs: Sequence[ModelTensor], given: Sequence[Tensors], rows: int, *, same_level: bool
) -> tuple[list[Tensors], list[Tensors]]:
    """Return samples and their results alone; given ones if random ones do not run."""
    if all(tensor.datatype != "BYTES" for tensor in inputs):
        samples = [sample(inputs, seed, same_level=same_level) for seed in range(PROOF_SAMPLES)]
        try:
            return samples, _alone_of(original, samples, rows)
        except DoesNotRun:
            if not given:
                raise
    running, alone = _those_that_run(original, given, rows)
    for name in (tensor.name for tensor in inputs if tensor.datatype == "BYTES"):
        if all(np.array_equal(one[name], running[0][name]) for one in running):
            raise Disproved(f"{name} is {_EQUAL} (samples that differ more may help)")
    return running[:PROOF_SAMPLES], alone[:PROOF_SAMPLES]


def _largest(inputs: Tensors, outputs: Tensors, row_s: float) -> int:
    """Return the largest power of two, up to the largest batch that is served, that is tried."""
    row_bytes = max(1, sum(array.nbytes for array in (*inputs.values(), *outputs.values())))
    most = min(LARGEST_BATCH, PROOF_S / max(row_s, 1e-9), PROOF_BYTES / row_bytes)
    return 1 << max(0, int(most).bit_length() - 1)


def _compare_largest(
    candidate: Path, samples: Sequence[Tensors], reference: list[Tensors], size: int, tolerance: float
) -> bool:
    """Compare a batch of this size; False if it does not run here, which says nothing of its rows."""
    try:
        results = _rows_of(candidate, samples, reference[0].keys(), sizes=(size,))
    except DoesNotRun:
        return False
    _compare(reference, results, tolerance)
    return True


def check_runs_whole(path: Path, inputs: Sequence[ModelTensor], given: Sequence[Tensors] = ()) -> None:
    """Run the model on random inputs of all its sizes, the leading ones included. Raises Disproved.

    If these do not run, a `given` sample has to. A model with inputs of types that numpy does not have is not run.
    """
    if any(tensor.datatype not in _TRIED for tensor in inputs):
        return
    shapes = ", ".join(f"{tensor.name} ({', '.join(map(str, tensor.sized))})" for tensor in inputs)
    try:
        _run_on(path, [sample(inputs, 0, same_level=True, whole=True)], f"inputs of the shapes {shapes}")
    except DoesNotRun:
        if not given:
            raise
        sizes = {tensor.name: int(tensor.sized[0]) if tensor.sized else 1 for tensor in inputs}
        feed = {name: np.concatenate([rows] * max(1, sizes[name] // len(rows))) for name, rows in given[0].items()}
        _run_on(path, [feed], f"the first of the given inputs, nor random ones of the shapes {shapes}")


def prove_input_types(
    original: Path, model: Model, types: Mapping[str, InputType], given: Sequence[Tensors]
) -> None:
    """Run the user's file on what the changed one makes of requests. Raises UnsupportedModel if they differ."""
    try:
        random = (sample(model.all_inputs, seed, same_level=True, whole=not model.batched) for seed in (0, 1))
        feeds = given[:2] or list(random)
        floats = [feed | {name: one.value(feed[name]) for name, one in types.items()} for feed in feeds]
        expected = _run_on(original, floats, "fp32 inputs")
        pairs = zip(expected, _run_on(model.path, feeds, "cast inputs"), strict=True)
        each = (difference(old[name], new[name], CAST_TOLERANCE) for old, new in pairs for name in old)
        off = next(filter(None, each), "")
    except Disproved as error:
        off = str(error)
    if off:
        raise UnsupportedModel(f"The model is another one with cast inputs: {off}.", "Leave out --input-type.")


def sample(inputs: Sequence[ModelTensor], seed: int, *, same_level: bool, whole: bool = False) -> Tensors:
    """Return random inputs with a leading 1, or with their own leading size if `whole`. Raises Disproved.

    Seeds differ in level and spread too, lest averages make them alike; with
    `same_level` they do not, because quantized models scale a whole batch by its largest value. Integers other
    than UINT8 are 0 or 1: a valid token, mask and segment in any model.
    """
    random = np.random.default_rng(seed)
    level = 1.0 if same_level else float(seed)
    feed: Tensors = {}
    values: NDArray[Any]
    for tensor in inputs:
        sizes = tensor.sized if whole else (1, *tensor.sized[1:])
        shape = tuple(int(size) for size in sizes)
        if tensor.datatype not in _TRIED:
            raise Disproved(f"input {tensor.name} is {tensor.datatype}, which cannot be tried out here")
        if tensor.datatype == "UINT8":
            values = random.integers(0, round(64 * (1 + level)), shape, dtype=np.uint8)
        elif tensor.datatype.startswith("FP"):
            values = random.standard_normal(shape) * (1 + level) / 2 + level / 2
        else:
            values = random.random(shape) < 0.35 + 0.15 * seed
        feed[tensor.name] = values.astype(NUMPY_TYPES[tensor.datatype])
    return feed


def _compare(reference: list[Tensors], results: list[tuple[str, list[Tensors]]], tolerance: float) -> None:
    for how, rows in results:
        for number, actual in enumerate(rows):
            expected = reference[number % len(reference)]
            for name in expected.keys() & actual.keys():
                problem = difference(expected[name], actual[name], tolerance)
                if problem:
                    raise Disproved(f"sample {number + 1} comes out differently {how}: output {name} {problem}")


def _tells_apart(results: Sequence[Tensors], name: str, tolerance: float, *, pairs: float = 1.0) -> bool:
    """True if every two samples give clearly different results, or this share of the pairs."""
    arrays = [result[name] for result in results]
    if any(array.shape != arrays[0].shape for array in arrays) or arrays[0].dtype.kind not in "fiubU":
        return False
    if arrays[0].dtype.kind != "f":
        return _share(np.mean(a != b) > DISTINCT * UNEQUAL_INTEGERS for a, b in combinations(arrays, 2)) >= pairs
    finite = all(np.isfinite(array).all() for array in arrays)
    return finite and _share(distance(a, b) > DISTINCT * tolerance for a, b in combinations(arrays, 2)) >= pairs


def _share(answers: Iterable[Any]) -> float:
    return float(np.mean(list(answers) or [0.0]))  # one sample has no pairs


def _compare_batches(
    original: Path,
    candidate: Path,
    samples: Sequence[Tensors],
    reference: list[Tensors],
    *,
    rows: int,
    tolerance: float,
    sizes: Sequence[int] = PROOF_SIZES,
) -> None:
    """Compare each sample's own results with those in batches of several sizes. Raises Disproved."""
    names = reference[0].keys()
    if rows > 1:
        _compare(reference, _rows_of(original, samples, names, sizes=(rows,)), tolerance)
    _compare(reference, _rows_of(candidate, samples, names, sizes=sizes, alone=candidate != original), tolerance)


def _run_on(path: Path, feeds: Sequence[Tensors], what: str) -> list[Tensors]:
    """Run the file on each of `feeds`. Raises DoesNotRun; `what` says what could not be run."""
    try:
        return run_model(path, feeds)
    except RunFailed as error:
        raise DoesNotRun(f"ONNX Runtime cannot run {what}: {shortened(plain(error.reason))}") from error


def _alone_of(path: Path, samples: Sequence[Tensors], rows: int) -> list[Tensors]:
    """Return each sample's own results: those of the first row, if the file takes `rows` samples at a time."""
    turns = [_joined([*samples[first:], *samples[:first]], rows) for first in range(len(samples))]
    done = _run_on(path, turns, "its own batch" if rows > 1 else "one sample by itself")
    return [
        {name: array[: max(1, len(array) // rows)] if array.ndim else array for name, array in one.items()}
        for one in done
    ]


def _those_that_run(path: Path, given: Sequence[Tensors], rows: int) -> tuple[list[Tensors], list[Tensors]]:
    """Return the samples that run by themselves, and their results. Raises Disproved if none does."""
    try:
        return list(given), _alone_of(path, given, rows)
    except DoesNotRun:
        done: list[tuple[Tensors, Tensors]] = []
        for one in given:
            with suppress(DoesNotRun):
                done.append((one, _alone_of(path, [one], rows)[0]))
        if not done:
            raise
        return [one for one, _ in done], [result for _, result in done]


def _joined(samples: Sequence[Tensors], size: int) -> Tensors:
    """Return a batch of so many rows: the samples, round and round."""
    picked = [samples[row % len(samples)] for row in range(size)]
    return {name: np.concatenate([feed[name] for feed in picked]) for name in samples[0]}


def _rows_of(
    path: Path, samples: Sequence[Tensors], names: Iterable[str], *, sizes: Sequence[int], alone: bool = False
) -> list[tuple[str, list[Tensors]]]:
    """Run the samples, round and round, in batches of these sizes, and each alone if `alone`.

    Returns pairs of a description and the results, row by row. Raises Disproved.
    """
    batches = [_joined(samples, size) for size in sizes]
    single = samples if alone else ()
    done = _run_on(path, [*single, *batches], f"batches of {', '.join(map(str, sizes))}")
    found = [("alone", done[: len(single)])] if alone else []
    for size, together in zip(sizes, done[len(single) :], strict=True):
        for name in names:
            if together[name].shape[:1] != (size,):
                raise Disproved(f"output {name} has shape {together[name].shape} for a batch of {size}")
        rows = [{name: together[name][row : row + 1] for name in names} for row in range(size)]
        found.append((f"in a batch of {size}", rows))
    return found
