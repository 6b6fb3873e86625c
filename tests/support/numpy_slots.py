"""Slots whose engine is numpy: y = x[:, :8] + 1. In place of `tritune_gpu/opening.py`, which needs a GPU."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from model_repo.runtime.tritune_gpu.slots import SlotMemory, Tensors


class Numpy:
    """See `tritune_gpu.slots.SlotRunner`."""

    def __init__(self, memory: SlotMemory) -> None:
        self.x = memory.allocate(64 * 1024).view(np.float32).reshape(64, 256)
        self.y = memory.allocate(64 * 32).view(np.float32).reshape(64, 8)

    def inputs_at(self, shapes: Any) -> dict[str, tuple[int, int]]:
        return {"x": (self.x.__array_interface__["data"][0], self.x.nbytes)}

    def run_in_place(self, rows: int, shapes: Any) -> dict[str, tuple[int, tuple[int, ...]]]:
        np.add(self.x[:rows, :8], 1, out=self.y[:rows])
        return {"y": (self.y.__array_interface__["data"][0], (rows, 8))}


def open_slots(folder: Any, config: Any, *, device: int) -> Callable[[], Any]:
    def opened() -> Any:
        memory = SlotMemory()
        tensors = Tensors(
            inputs=(("x", "FP32"),), outputs=(("y", "FP32"),), max_batch_size=64, first_shapes={"x": (64, 256)}
        )
        return SimpleNamespace(
            tensors=tensors, memory=memory, runner=Numpy(memory), sizes={"x": 4, "y": 4}, close=memory.close
        )

    return opened
