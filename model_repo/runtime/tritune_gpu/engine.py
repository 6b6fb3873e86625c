"""The interface of an engine to the runner, the same for all libraries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

Shapes = dict[str, tuple[int, ...]]
"""Tensor name -> its whole shape, with the batch."""


class EngineMismatch(RuntimeError):
    """An engine was built for another library or GPU, or is damaged; the text explains how to rebuild it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """The name and data type of an input or output."""

    name: str
    dtype: np.dtype[Any]


class Bound(Protocol):
    """An engine for one set of input shapes, with its inputs at fixed addresses."""

    output_shapes: Shapes

    def put_outputs(self, addresses: Mapping[str, int]) -> None:
        """Set the addresses of the outputs in device memory; needed before the first `enqueue`."""

    def enqueue(self, stream: int) -> None:
        """Enqueue one execution on the stream, and return at once."""


class GpuEngine(Protocol):
    """A loaded engine."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    batch_sizes: tuple[int, ...]  # the only ones that it executes, ascending; empty: any
    captures_itself: bool  # it replays a CUDA graph of its own inside `enqueue`, so the runner must not record it

    def bind(self, shapes: Shapes, addresses: Mapping[str, int]) -> Bound:
        """Return the engine for these shapes, with its inputs at these addresses in device memory."""
