"""A GPU of ordinary memory, with a TensorRT whose engines have faults, in the child processes of a run."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from fake_cuda import DoublingEngine, FakeCuda
from numpy.typing import NDArray

from model_repo.runtime.tritune_gpu import driver
from optimizer.engines import timing_child
from optimizer.precision.names import Precision

OF_CHILDREN = {
    "_build": "from_variant", "_engine": "standalone",
    "compile_kernels": "timing_child", "timed": "timing_child", "merge_kernels": "timing_child",
}  # fmt: skip
"""The functions that are called in children, and the modules that have them."""


class FaultyEngine(DoublingEngine):
    """The outputs of batches of `wrong_at` rows are wrong; there is no memory for more rows than `memory_for`.

    It is loaded with the `kernels` of some batch sizes.
    """

    def __init__(
        self, cuda: FakeCuda, *, wrong_at: int = 0, memory_for: float = math.inf, kernels: frozenset[int]
    ) -> None:
        super().__init__(cuda)
        self.wrong_at, self.memory_for, self.kernels = wrong_at, memory_for, kernels

    def compiled_kernels(self) -> bytes:
        return json.dumps(sorted(self.kernels | {shape[0] for shape in self.bound})).encode()

    def bind(self, shapes: Any, addresses: Any) -> Any:
        if shapes["x"][0] > self.memory_for:
            raise driver.CudaError("cuMemAlloc failed: CUDA_ERROR_OUT_OF_MEMORY: out of memory")
        return super().bind(shapes, addresses)

    def doubled(self, x: NDArray[Any]) -> NDArray[Any]:
        return super().doubled(x) * (-1 if len(x) == self.wrong_at else 1)


def install(monkeypatch: Any, faults: Mapping[Precision, Mapping[str, int]]) -> None:
    """Let engines be built and run on this GPU; `faults` are those of `FaultyEngine`, by precision."""
    from optimizer.engines import candidates, from_variant, standalone

    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    monkeypatch.setattr(candidates, "installed_tensorrt", lambda: (library(),))
    for name in OF_CHILDREN:
        caller = from_variant if name == "_build" else standalone
        monkeypatch.setattr(caller, name, partial(_on_virtual_gpu, name, faults))


def _on_virtual_gpu(name: str, faults: Any, *given: Any, **named: Any) -> Any:
    """Call a function of `OF_CHILDREN`. Runs in a child."""
    module: Any = import_module(f"optimizer.engines.{OF_CHILDREN[name]}")
    virtual = {
        "DriverCuda": lambda _: FakeCuda(),
        "load_engine": _load_engine,
        "find_tensorrt": lambda _: library(),
        "build_plan": partial(_build_plan, faults),
    }
    for patched in (driver, timing_child, module):
        for attribute in virtual.keys() & vars(patched).keys():
            setattr(patched, attribute, virtual[attribute])
    return getattr(module, name)(*given, **named)


def library() -> Any:
    from optimizer.engines.builder import TensorRt

    return TensorRt(backend="tensorrt_rtx", module=None, version="1.0")


def _build_plan(faults: Any, library: Any, key: Any, onnx_file: Path, *, timing_cache: bytes = b"") -> Any:
    from optimizer.engines.builder import BuiltPlan

    plan = json.dumps(faults[key.precision]).encode()
    return BuiltPlan(plan=plan, executed={}, timing_cache=None, build_s=0.0)


def _load_engine(file: Path, backend: str, cuda: FakeCuda, stream: int, **_: Any) -> FaultyEngine:
    kernels = {size for part in file.parent.glob("kernels*[et]") for size in json.loads(part.read_bytes())}
    faults = {} if backend == "onnxruntime" else json.loads(file.read_bytes())
    return FaultyEngine(cuda, **faults, kernels=frozenset(kernels))
