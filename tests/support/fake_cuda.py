"""A GPU whose device memory is ordinary memory, and an engine for it: streams carry out at once, graphs later.

`tests/contract/test_cuda.py` compares it with the real driver.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_repo.runtime.tritune_gpu.driver import Captured, DriverCuda
from model_repo.runtime.tritune_gpu.engine import Port


class FakeCuda(DriverCuda):
    """Its methods are all its own. `calls` lists the calls by name."""

    compute_capability = "9.0"

    def __init__(self, *, registers: bool = True) -> None:
        self.calls: list[Any] = []
        self.registered: list[Any] = []
        self.memory: list[Any] = []
        self._registers = registers
        self._recording: list[Any] | None = None
        self._graphs: dict[Any, Any] = {}

    def allocate(self, size_bytes: Any) -> Any:
        self.calls.append("allocate")
        return self._new(size_bytes).__array_interface__["data"][0]

    def allocate_pinned(self, size_bytes: Any) -> NDArray[np.uint8]:
        self.calls.append("allocate_pinned")
        return self._new(size_bytes)

    def register(self, address: Any, size_bytes: Any) -> bool:
        self.calls.append("register")
        if self._registers:
            self.registered.append((address, size_bytes))
        return self._registers

    def stream(self) -> int:
        return 7

    def copy_in(self, device: Any, host: Any, size_bytes: Any, stream: Any) -> None:
        self.do("copy_in", lambda: ctypes.memmove(device, host, size_bytes))

    def copy_out(self, host: Any, device: Any, size_bytes: Any, stream: Any) -> None:
        self.do("copy_out", lambda: ctypes.memmove(host, device, size_bytes))

    def wait(self, stream: Any) -> None:
        assert self._recording is None, "the driver refuses to wait for a stream that is being captured"
        self.calls.append("wait")

    def event(self) -> int:
        return 9

    def record(self, event: Any, stream: Any) -> None:
        assert self._recording is None
        self.calls.append("record")

    def wait_for(self, event: Any, stream: Any) -> None:
        self.calls.append("wait_for")

    @contextmanager
    def capture(self, stream: Any) -> Iterator[Captured]:
        captured, self._recording = Captured(), []
        try:
            yield captured
        except BaseException:
            self._recording = None
            raise
        captured.handle = max(self._graphs, default=99) + 1
        self._graphs[captured.handle], self._recording = self._recording, None

    def launch(self, graph: Any, stream: Any) -> None:
        self.calls.append("launch")
        for action in self._graphs[graph]:
            action()

    def free_graph(self, graph: Any) -> None:
        self.calls.append("free_graph")
        del self._graphs[graph]

    def close(self) -> None:
        self.memory.clear()

    def do(self, name: str, action: Any) -> None:
        """Execute an operation, or record it during a capture."""
        if self._recording is not None:
            self._recording.append(action)
        else:
            self.calls.append(name)
            action()

    def _new(self, size_bytes: Any) -> NDArray[np.uint8]:
        memory = np.zeros(max(size_bytes, 1), dtype=np.uint8)
        self.memory.append(memory)
        return memory


class DoublingEngine:
    """x (batch, ...) float32 -> y = 2 x, and sums (batch,) of each row; `executed` are the shapes, in order."""

    inputs: tuple[Port, ...] = (Port(name="x", dtype=np.dtype(np.float32)),)
    outputs: tuple[Port, ...] = (
        Port(name="y", dtype=np.dtype(np.float32)),
        Port(name="sums", dtype=np.dtype(np.float32)),
    )

    def __init__(
        self, cuda: FakeCuda, *, captures_itself: bool = False, batch_sizes: tuple[int, ...] = ()
    ) -> None:
        self.cuda = cuda
        self.captures_itself = captures_itself
        self.batch_sizes = batch_sizes
        self.bound: list[Any] = []
        self.executed: list[Any] = []

    def bind(self, shapes: Any, addresses: Any) -> _Bound:
        self.bound.append(shapes["x"])
        return _Bound(self, shapes["x"], addresses["x"])

    def doubled(self, x: NDArray[Any]) -> NDArray[Any]:
        return 2 * x


class _Bound:
    def __init__(self, engine: DoublingEngine, shape: Any, address: Any) -> None:
        self._engine = engine
        self._shape = shape
        self._x = address
        self._outputs: dict[Any, Any] = {}
        self.output_shapes = {"y": shape, "sums": shape[:1]}

    def put_outputs(self, addresses: Any) -> None:
        self._outputs = dict(addresses)

    def enqueue(self, stream: Any) -> None:
        def execute() -> None:
            self._engine.executed.append(self._shape)
            x = _at(self._x, self._shape)
            _at(self._outputs["y"], self._shape)[:] = self._engine.doubled(x)
            _at(self._outputs["sums"], self._shape[:1])[:] = x.reshape(len(x), -1).sum(axis=1)

        self._engine.cuda.do("execute", execute)


def _at(address: int, shape: Any) -> NDArray[Any]:
    count = int(np.prod(shape))
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address)).reshape(shape)
