"""Run batches of requests: one copy in, one execution, one copy out, in preallocated memory."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .host_memory import DirectMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from .driver import DriverCuda
    from .engine import Bound, GpuEngine, Port, Shapes

Array = np.ndarray[Any, Any]
InputPath = Literal["auto", "pinned", "direct"]
"""`pinned`: requests are joined in page-locked memory, whose copy to the GPU is part of the graph. `direct`: the
GPU reads each request from Triton's shared memory. `auto`: direct for large inputs, else pinned."""

LARGE_BYTES = 32 * 1024
"""Threshold of `auto`, in bytes per batch item. From here on a copy on the CPU costs more than a call of the
driver."""

MAX_WARM_UPS, ALIKE = 10, 0.2
"""A batch size is warm once two executions in a row differ by less than 20 %, or after 10."""

MAX_BOUND = 64
"""Number of shapes that are kept ready; above it, the oldest is dropped."""


class Buffer:
    """The same tensor of every batch: device memory and page-locked host memory of equal size."""

    def __init__(self, port: Port, cuda: DriverCuda, allocate_host: Callable[[int], Array]) -> None:
        self.port = port
        self._cuda = cuda
        self._allocate_host = allocate_host
        self._host: Array = np.empty(0, dtype=np.uint8)
        self.size_bytes = 0
        self.device = 0
        self.host_address = 0

    def grow(self, size_bytes: int) -> bool:
        """Make room for this many bytes; True if that moved the memory, so that all bindings to it are void."""
        if size_bytes <= self.size_bytes:
            return False
        size_bytes = max(size_bytes, 2 * self.size_bytes)  # old memory stays allocated: at most as much again
        self.device = self._cuda.allocate(size_bytes)
        self._host = self._allocate_host(size_bytes)
        self.host_address = self._host.__array_interface__["data"][0]
        self.size_bytes = size_bytes
        return True

    def host(self, shape: tuple[int, ...]) -> Array:
        """Return the first bytes of the host memory as an array of this shape."""
        size_bytes = self.bytes_of(shape)
        return self._host[:size_bytes].view(self.port.dtype).reshape(shape)

    def host_bytes(self, shape: tuple[int, ...]) -> Array:
        """Return the same memory as bytes."""
        return self._host[: self.bytes_of(shape)]

    def bytes_of(self, shape: tuple[int, ...]) -> int:
        """Return the size of an array of this shape, in bytes."""
        return math.prod(shape) * self.port.dtype.itemsize


class Prepared:
    """An engine bound to one set of shapes, and its recorded graph if there is one.

    `direct` are the inputs that each request sends to the GPU by itself, outside the graph.
    """

    def __init__(self, bound: Bound, shapes: Shapes, direct: frozenset[str]) -> None:
        self.bound = bound
        self.shapes = shapes
        self.direct = direct
        self.graph: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """The stream on which several runners of one engine compute one after the other: each batch then has the whole
    GPU. They hold the lock while they use the engine: to bind it, to record a graph, to enqueue an execution."""

    stream: int
    lock: AbstractContextManager[Any]


class Runner:
    """One engine on one stream; for one thread only.

    `batch_sizes` are the sizes that are executed, or the next ones that the engine has: a batch is padded to the
    next of them, and the results of the padding are dropped. A batch larger than all of them is executed as it is.
    `max_batch_size` 0: requests carry whole tensors, and run one at a time.

    `allocate_host` makes host memory (None: the driver's page-locked memory). `turns` is for several runners of
    one engine, each with a thread and a stream for its copies.
    """

    def __init__(
        self,
        engine: GpuEngine,
        cuda: DriverCuda,
        stream: int,
        *,
        max_batch_size: int,
        batch_sizes: Sequence[int] = (),
        cuda_graphs: bool = False,
        input_path: InputPath = "auto",
        clock: Callable[[], float] = time.perf_counter,
        allocate_host: Callable[[int], Array] | None = None,
        turns: Turns | None = None,
    ) -> None:
        self._clock = clock
        self._engine = engine
        self._cuda = cuda
        self._stream = stream
        self._max_batch_size = max_batch_size
        able = engine.batch_sizes
        sizes = {next((one for one in able if one >= size), size) for size in batch_sizes}
        self._batch_sizes = sorted(sizes) if max_batch_size else []
        self._record = cuda_graphs and not engine.captures_itself
        self._direct = None if input_path == "pinned" else DirectMemory(cuda)
        self._all_direct = input_path == "direct"
        self._turns = turns
        self._engine_in_use = nullcontext() if turns is None else turns.lock
        self._events = (cuda.event(), cuda.event()) if turns is not None else (0, 0)
        host = allocate_host or cuda.allocate_pinned
        self._in = {port.name: Buffer(port, cuda, host) for port in engine.inputs}
        self._out = {port.name: Buffer(port, cuda, host) for port in engine.outputs}
        self._prepared: dict[tuple[tuple[int, ...], ...], Prepared] = {}

    def run(self, requests: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
        """Execute the requests as one batch and return their outputs, in order; the next run overwrites them.

        Requests have equal shapes past the batch, and contiguous arrays of the engine's dtypes.
        """
        rows, shapes = self._batch_of(requests)
        prepared = self.prepare(shapes)
        self._fill(requests, prepared)
        self._execute(prepared)
        outputs = {}
        for name, shape in prepared.bound.output_shapes.items():
            outputs[name] = self._out[name].host((rows, *shape[1:]) if self._max_batch_size else shape)
        return outputs

    def inputs_at(self, shapes: Shapes) -> dict[str, tuple[int, int]]:
        """Make room for these whole shapes; return the address and size in bytes of each input's host memory."""
        with self._engine_in_use:
            self._make_room(self._in, shapes)
        return {name: (buffer.host_address, buffer.size_bytes) for name, buffer in self._in.items()}

    def run_in_place(self, rows: int, shapes: Shapes) -> dict[str, tuple[int, tuple[int, ...]]]:
        """Execute what lies in the inputs' host memory, of these whole shapes with `rows` batch items.

        Returns the address and the whole shape of each output; the next run overwrites them. Raises ValueError if
        `inputs_at` has not made room for a full batch of these shapes.
        """
        for name, buffer in self._in.items():
            if buffer.bytes_of(self._at_full_batch(shapes[name])) > buffer.size_bytes:
                raise ValueError(f"{name} {shapes[name]} has no room in the memory of this slot")
        if self._max_batch_size:
            size = self._executed_size(rows)
            shapes = {name: (size, *shape[1:]) for name, shape in shapes.items()}
        prepared = self.prepare(shapes)
        self._execute(prepared)
        return {
            name: (self._out[name].host_address, (rows, *shape[1:]) if self._max_batch_size else shape)
            for name, shape in prepared.bound.output_shapes.items()
        }

    def reads_directly(self, row_bytes: int) -> bool:
        """True if batch items of this size are best read directly from Triton's shared memory."""
        return self._direct is not None and (self._all_direct or row_bytes >= LARGE_BYTES)

    def prepare(self, shapes: Shapes) -> Prepared:
        """Return the bound engine for these shapes; bind it, and record its graph if wanted, on first use."""
        key = tuple(shapes[name] for name in self._in)
        if key not in self._prepared:
            with self._engine_in_use:
                if len(self._prepared) >= MAX_BOUND:
                    self._forget(next(iter(self._prepared)))
                self._prepared[key] = self._bind(shapes)
        return self._prepared[key]

    def warm_up(self, row_shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Execute every batch size for these shapes of items until two executions take the same time, within 20 %.

        The largest first, so that memory moves at most once.
        """
        for size in reversed(self._batch_sizes):
            prepared = self.prepare({name: (size, *shape) for name, shape in row_shapes.items()})
            before_s = 0.0
            for _ in range(MAX_WARM_UPS):
                began_s = self._clock()
                self._execute(prepared)
                taken_s = self._clock() - began_s
                if abs(taken_s - before_s) < ALIKE * before_s:
                    break
                before_s = taken_s

    def close(self) -> None:
        """Free the recorded graphs; memory is the driver's to free."""
        for key in list(self._prepared):
            self._forget(key)

    def _batch_of(self, requests: Sequence[Mapping[str, Array]]) -> tuple[int, Shapes]:
        """Return the number of batch items, and the shapes to execute."""
        first = requests[0]
        if not self._max_batch_size:
            return 1, {name: first[name].shape for name in self._in}
        name = next(iter(self._in))
        rows = sum(len(request[name]) for request in requests)
        return rows, {name: (self._executed_size(rows), *first[name].shape[1:]) for name in self._in}

    def _executed_size(self, rows: int) -> int:
        at = bisect_left(self._batch_sizes, rows)
        return self._batch_sizes[at] if at < len(self._batch_sizes) else rows

    def _bind(self, shapes: Shapes) -> Prepared:
        self._make_room(self._in, shapes)
        bound = self._engine.bind(shapes, {name: buffer.device for name, buffer in self._in.items()})
        self._make_room(self._out, bound.output_shapes)
        prepared = Prepared(bound, shapes, self._sent_directly(shapes))
        bound.put_outputs({name: buffer.device for name, buffer in self._out.items()})
        if self._record:
            stream = self._stream if self._turns is None else self._turns.stream
            bound.enqueue(stream)  # the first execution compiles and allocates, which a graph cannot record
            self._cuda.wait(stream)
            with self._cuda.capture(self._stream) as captured:
                if self._turns is None:
                    self._enqueue_all(prepared)
                else:
                    bound.enqueue(self._stream)
            prepared.graph = captured.handle
        return prepared

    def _sent_directly(self, shapes: Shapes) -> frozenset[str]:
        """Return the inputs that the GPU reads directly: one call per request, which pays for large ones."""
        rows = max(1, self._max_batch_size and next(iter(shapes.values()))[0])
        return frozenset(
            name for name, buffer in self._in.items() if self.reads_directly(buffer.bytes_of(shapes[name]) // rows)
        )

    def _make_room(self, buffers: Mapping[str, Buffer], shapes: Shapes) -> None:
        """Grow the buffers to these shapes at the full batch. If one moves, forget all prepared shapes."""
        moved = [
            buffer.grow(buffer.bytes_of(self._at_full_batch(shapes[name]))) for name, buffer in buffers.items()
        ]
        if any(moved):
            for key in list(self._prepared):
                self._forget(key)

    def _at_full_batch(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (max(shape[0], self._max_batch_size), *shape[1:]) if self._max_batch_size else shape

    def _forget(self, key: tuple[tuple[int, ...], ...]) -> None:
        graph = self._prepared.pop(key).graph
        if graph is not None:
            self._cuda.free_graph(graph)

    def _fill(self, requests: Sequence[Mapping[str, Array]], prepared: Prepared) -> None:
        """Copy the requests to page-locked memory, or send them to the GPU at once if they are read directly."""
        for name, buffer in self._in.items():
            if name in prepared.direct:
                self._send(buffer, [request[name] for request in requests], prepared.shapes[name])
                continue
            host, offset = buffer.host_bytes(prepared.shapes[name]), 0
            for request in requests:
                part = request[name]
                host[offset : offset + part.nbytes] = part.reshape(-1).view(np.uint8)
                offset += part.nbytes

    def _send(self, buffer: Buffer, parts: Sequence[Array], shape: tuple[int, ...]) -> None:
        """Copy each part to its rows on the GPU; through page-locked memory if the GPU cannot read it directly."""
        assert self._direct is not None
        offset = 0
        for part in parts:
            address = part.__array_interface__["data"][0]
            if not self._direct.covers(address, part.nbytes):
                host = buffer.host_bytes(shape)
                host[offset : offset + part.nbytes] = part.reshape(-1).view(np.uint8)
                address = buffer.host_address + offset
            self._cuda.copy_in(buffer.device + offset, address, part.nbytes, self._stream)
            offset += part.nbytes

    def _execute(self, prepared: Prepared) -> None:
        if self._turns is not None:
            self._execute_in_turn(prepared, self._turns)
        elif prepared.graph is not None:
            self._cuda.launch(prepared.graph, self._stream)
        else:
            self._enqueue_all(prepared)
        self._cuda.wait(self._stream)

    def _execute_in_turn(self, prepared: Prepared, turns: Turns) -> None:
        """Copy on the own stream, and compute on the shared one, after what others have enqueued there."""
        copied, computed = self._events
        self._copy_in(prepared)
        self._cuda.record(copied, self._stream)
        with turns.lock:
            self._cuda.wait_for(copied, turns.stream)
            if prepared.graph is not None:
                self._cuda.launch(prepared.graph, turns.stream)
            else:
                prepared.bound.enqueue(turns.stream)
            self._cuda.record(computed, turns.stream)
        self._cuda.wait_for(computed, self._stream)
        self._copy_out(prepared)

    def _enqueue_all(self, prepared: Prepared) -> None:
        """Enqueue the work of a graph: the copy in (except of direct inputs), the execution, the copy out."""
        self._copy_in(prepared)
        prepared.bound.enqueue(self._stream)
        self._copy_out(prepared)

    def _copy_in(self, prepared: Prepared) -> None:
        for name, buffer in self._in.items():
            if name in prepared.direct:
                continue
            size_bytes = buffer.bytes_of(prepared.shapes[name])
            self._cuda.copy_in(buffer.device, buffer.host_address, size_bytes, self._stream)

    def _copy_out(self, prepared: Prepared) -> None:
        for name, buffer in self._out.items():
            size_bytes = buffer.bytes_of(prepared.bound.output_shapes[name])
            self._cuda.copy_out(buffer.host_address, buffer.device, size_bytes, self._stream)
