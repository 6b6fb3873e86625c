"""Requests of the lengths in a file, such as the numbers of tokens that were logged: one a line, in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from loadgen.errors import PayloadError
from loadgen.random_inputs import random_tensor
from loadgen.request_size import check_request_size

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from loadgen.model_info import ModelInfo

SUFFIX = ".txt"
_MOST_DIGITS = 12
MOST_LENGTHS = 10_000
"""A request is made for each before the load begins."""


def lengths_from_file(path: Path) -> list[int]:
    """The lengths, in the file's order; what follows a # is a remark. Raises PayloadError, naming the line."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PayloadError(f"{path} cannot be read ({error}).\nCheck the path.") from error
    lengths: list[int] = []
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].strip()
        if text and not (text.isdecimal() and len(text) <= _MOST_DIGITS and int(text) > 0):
            raise PayloadError(
                f"{path}, line {number}: {line.strip()[:60]!r} is no length.\n"
                "Write one whole number above 0 a line."
            )
        lengths += [int(text)] if text else []
    if len(lengths) > MOST_LENGTHS:
        raise PayloadError(
            f"{path} holds {len(lengths):,} lengths, over {MOST_LENGTHS:,}.\n"
            f"Give a part of them, in the order in which they came: head -n {MOST_LENGTHS}."
        )
    return lengths


def samples_of_lengths(lengths: Sequence[int], info: ModelInfo, seed: int) -> list[dict[str, NDArray[Any]]]:
    """A sample for each length, the size of all free dimensions, with random values. Raises PayloadError."""
    free = {tensor.name: tensor.shape[1:] if info.batched else tensor.shape for tensor in info.inputs}
    if not any(-1 in shape for shape in free.values()):
        raise PayloadError(
            f"no input of {info.name} has a free dimension that a length could be given to: {free}.\n"
            "Give samples as .npz or .json, or a model with a dynamic axis."
        )
    most = max(lengths, default=1)
    shapes = {name: tuple(most if size == -1 else size for size in shape) for name, shape in free.items()}
    check_request_size(info, shapes, shapes)
    random = np.random.default_rng(seed)
    made = {
        length: {
            tensor.name: random_tensor(
                random, tensor.datatype, tuple(length if size == -1 else size for size in free[tensor.name])
            )
            for tensor in info.inputs
        }
        for length in sorted(set(lengths))
    }
    return [made[length] for length in lengths]
