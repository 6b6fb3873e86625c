"""A GPU whose device memory is ordinary memory, and an engine for it: streams carry out at once, graphs later.

`tests/contract/test_cuda.py` holds it to what the real driver does.
"""

import ctypes
from contextlib import contextmanager

import numpy as np

from model_repo.runtime.tritune_gpu.driver import Captured
from model_repo.runtime.tritune_gpu.engine import Port


class FakeCuda:
    """See `tritune_gpu.driver.Cuda`. `calls` lists what was asked for, by name."""

    compute_capability = "9.0"

    def __init__(self, *, registers=True):
        self.calls = []
        self.registered = []
        self.memory = []
        self._registers = registers
        self._recording = None
        self._graphs = {}

    def allocate(self, size_bytes):
        self.calls.append("allocate")
        return self._new(size_bytes).__array_interface__["data"][0]

    def allocate_pinned(self, size_bytes):
        self.calls.append("allocate_pinned")
        return self._new(size_bytes)

    def register(self, address, size_bytes):
        self.calls.append("register")
        if self._registers:
            self.registered.append((address, size_bytes))
        return self._registers

    def stream(self):
        return 7

    def copy_in(self, device, host, size_bytes, stream):
        self.do("copy_in", lambda: ctypes.memmove(device, host, size_bytes))

    def copy_out(self, host, device, size_bytes, stream):
        self.do("copy_out", lambda: ctypes.memmove(host, device, size_bytes))

    def wait(self, stream):
        assert self._recording is None, "the driver refuses to wait for a stream that is being captured"
        self.calls.append("wait")

    @contextmanager
    def capture(self, stream):
        captured, self._recording = Captured(), []
        try:
            yield captured
        except BaseException:
            self._recording = None
            raise
        captured.handle = 100 + len(self._graphs)
        self._graphs[captured.handle], self._recording = self._recording, None

    def launch(self, graph, stream):
        self.calls.append("launch")
        for action in self._graphs[graph]:
            action()

    def free_graph(self, graph):
        self.calls.append("free_graph")
        del self._graphs[graph]

    def close(self):
        self.memory.clear()

    def do(self, name, action):
        """Carry out, or record where a capture is going on."""
        if self._recording is not None:
            self._recording.append(action)
        else:
            self.calls.append(name)
            action()

    def _new(self, size_bytes):
        memory = np.zeros(max(size_bytes, 1), dtype=np.uint8)
        self.memory.append(memory)
        return memory


class DoublingEngine:
    """x (batch, ...) float32 -> y = 2 x, and sums (batch,) of each row; `executed` are the shapes, in order."""

    inputs = (Port(name="x", dtype=np.dtype(np.float32)),)
    outputs = (Port(name="y", dtype=np.dtype(np.float32)), Port(name="sums", dtype=np.dtype(np.float32)))

    def __init__(self, cuda, *, captures_itself=False):
        self.cuda = cuda
        self.captures_itself = captures_itself
        self.bound = []
        self.executed = []

    def bind(self, shapes, addresses):
        self.bound.append(shapes["x"])
        return _Bound(self, shapes["x"], addresses["x"])


class _Bound:
    def __init__(self, engine, shape, address):
        self._engine = engine
        self._shape = shape
        self._x = address
        self._outputs = {}
        self.output_shapes = {"y": shape, "sums": shape[:1]}

    def put_outputs(self, addresses):
        self._outputs = dict(addresses)

    def enqueue(self, stream):
        def execute():
            self._engine.executed.append(self._shape)
            x = _at(self._x, self._shape)
            _at(self._outputs["y"], self._shape)[:] = 2 * x
            _at(self._outputs["sums"], self._shape[:1])[:] = x.reshape(len(x), -1).sum(axis=1)

        self._engine.cuda.do("execute", execute)


def _at(address, shape):
    count = int(np.prod(shape))
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address)).reshape(shape)
