"""What the runner needs of an engine, whatever executes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

Shapes = dict[str, tuple[int, ...]]
"""Tensor name -> its whole shape, the batch included."""


class EngineMismatch(RuntimeError):
    """An engine was built for another library or GPU, or is damaged; the text says how to build it anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """An input or output: what its bytes mean."""

    name: str
    dtype: np.dtype[Any]


class Bound(Protocol):
    """An engine for one set of input shapes, with its inputs at fixed addresses."""

    output_shapes: Shapes

    def put_outputs(self, addresses: Mapping[str, int]) -> None:
        """Where in device memory the outputs go from now on; needed before the first `enqueue`."""
        ...

    def enqueue(self, stream: int) -> None:
        """Give one execution to the stream, and return at once."""
        ...


class GpuEngine(Protocol):
    """A loaded engine."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    captures_itself: bool  # it replays a CUDA graph of its own inside `enqueue`, so nobody else may record it

    def bind(self, shapes: Shapes, addresses: Mapping[str, int]) -> Bound:
        """The engine for these shapes, its inputs read from these addresses in device memory."""
        ...
