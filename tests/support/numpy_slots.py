"""Slots whose engine is numpy: y = x + 1 for rows of 256 numbers, or of the configuration's `width`.

In place of `tritune_gpu/opening.py`, which needs a GPU.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from model_repo.runtime.tritune_gpu.slots import SlotMemory, Tensors

ROWS = 64


def serve_numpy(version: Path) -> None:
    """Put this module in place of the one that opens an engine, in a model's version folder."""
    code = Path(__file__).read_text().replace("from model_repo.runtime.tritune_gpu.", "from .")
    (version / "tritune_gpu" / "opening.py").write_text(code)
    shutil.rmtree(version / "tritune_gpu" / "__pycache__", ignore_errors=True)


class Numpy:
    """The two methods of `tritune_gpu.runner.Runner` that a slot calls."""

    def __init__(self, memory: SlotMemory, width: int) -> None:
        self.x, self.y = (memory.allocate(ROWS * width * 4).view(np.float32).reshape(ROWS, width) for _ in "xy")

    def inputs_at(self, shapes: Any) -> dict[str, tuple[int, int]]:
        return {"x": (self.x.__array_interface__["data"][0], self.x.nbytes)}

    def run_in_place(self, rows: int, shapes: Any) -> dict[str, tuple[int, tuple[int, ...]]]:
        np.add(self.x[:rows], 1, out=self.y[:rows])
        return {"y": (self.y.__array_interface__["data"][0], (rows, self.y.shape[1]))}


def open_slots(folder: Any, config: Any, *, device: int) -> Callable[[], Any]:
    width = config.get("width", 256)

    def opened() -> Any:
        memory = SlotMemory()
        tensors = Tensors(
            inputs=(("x", "FP32"),),
            outputs=(("y", "FP32"),),
            max_batch_size=ROWS,
            first_shapes={"x": (ROWS, width)},
        )
        return SimpleNamespace(
            tensors=tensors, memory=memory, runner=Numpy(memory, width), sizes={"x": 4, "y": 4}, close=memory.close
        )

    return opened
