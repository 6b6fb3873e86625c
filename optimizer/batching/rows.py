"""Run samples alone and in batches, row by row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from optimizer.errors import RunFailed
from optimizer.model.checks import plain, shortened
from optimizer.model.ort_child import Tensors, run_model


class Disproved(Exception):
    """Batching is not sound, or cannot be shown to be; the message is the reason."""


class DoesNotRun(Disproved):
    """ONNX Runtime refuses these samples."""


def run_on(path: Path, feeds: Sequence[Tensors], what: str) -> list[Tensors]:
    """Run the file on each of `feeds`. Raises DoesNotRun; `what` says what could not be run."""
    try:
        return run_model(path, feeds)
    except RunFailed as error:
        raise DoesNotRun(f"ONNX Runtime cannot run {what}: {shortened(plain(error.reason))}") from error


def alone_of(path: Path, samples: Sequence[Tensors], rows: int) -> list[Tensors]:
    """Return each sample's own results: those of the first row, if the file takes `rows` samples at a time."""
    turns = [joined([*samples[first:], *samples[:first]], rows) for first in range(len(samples))]
    done = run_on(path, turns, "its own batch" if rows > 1 else "one sample by itself")
    return [
        {name: array[: max(1, len(array) // rows)] if array.ndim else array for name, array in one.items()}
        for one in done
    ]


def those_that_run(path: Path, given: Sequence[Tensors], rows: int) -> tuple[list[Tensors], list[Tensors]]:
    """Return the samples that run by themselves, and their results. Raises Disproved if none does."""
    try:
        return list(given), alone_of(path, given, rows)
    except DoesNotRun:
        done: list[tuple[Tensors, Tensors]] = []
        for one in given:
            with suppress(DoesNotRun):
                done.append((one, alone_of(path, [one], rows)[0]))
        if not done:
            raise
        return [one for one, _ in done], [result for _, result in done]


def joined(samples: Sequence[Tensors], size: int) -> Tensors:
    """Return a batch of so many rows: the samples, round and round."""
    picked = [samples[row % len(samples)] for row in range(size)]
    return {name: np.concatenate([feed[name] for feed in picked]) for name in samples[0]}


def rows_of(
    path: Path,
    samples: Sequence[Tensors],
    names: Iterable[str],
    *,
    sizes: Sequence[int],
    alone: bool = False,
) -> list[tuple[str, list[Tensors]]]:
    """Run the samples, round and round, in batches of these sizes, and each alone if `alone`.

    Returns pairs of a description and the results, row by row. Raises Disproved.
    """
    batches = [joined(samples, size) for size in sizes]
    single = samples if alone else ()
    done = run_on(path, [*single, *batches], f"batches of {', '.join(map(str, sizes))}")
    found = [("alone", done[: len(single)])] if alone else []
    for size, together in zip(sizes, done[len(single) :], strict=True):
        for name in names:
            if together[name].shape[:1] != (size,):
                raise Disproved(f"output {name} has shape {together[name].shape} for a batch of {size}")
        rows = [{name: together[name][row : row + 1] for name in names} for row in range(size)]
        found.append((f"in a batch of {size}", rows))
    return found
