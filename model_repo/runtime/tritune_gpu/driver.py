"""The calls of the CUDA driver that the runtime needs, checked, with plain integers as addresses and handles."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

Array = np.ndarray[Any, Any]

BLOCKING_SYNC = 4
"""A thread sleeps while it waits for the GPU, which spares the core."""


class CudaError(RuntimeError):
    """A call of the CUDA driver failed; the text names the call and the driver's reason."""


class Captured:
    """The graph that a `capture` block recorded; `handle` is set once the block has ended."""

    handle: int = 0


class DriverCuda:
    """The GPU with this number, through NVIDIA's `cuda-bindings`; its primary context, which libraries share.

    Memory lives until `close`. `compute_capability` is such as "8.6".
    """

    def __init__(self, device: int = 0) -> None:
        from cuda.bindings import driver

        self._driver = driver
        self._call("cuInit", 0)
        self._device = self._call("cuDeviceGet", device)
        # Old drivers refuse this if the context is in use already; it then waits as its first user chose.
        driver.cuDevicePrimaryCtxSetFlags(self._device, BLOCKING_SYNC)
        self._context = self._call("cuDevicePrimaryCtxRetain", self._device)
        self._call("cuCtxSetCurrent", self._context)
        self._capture_mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        attribute = driver.CUdevice_attribute
        major, minor = (
            self._call("cuDeviceGetAttribute", number, self._device)
            for number in (
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )
        )
        self.compute_capability = f"{major}.{minor}"
        self._device_memory: list[int] = []
        self._pinned_memory: list[int] = []
        self._registered: list[int] = []
        self._streams: list[int] = []
        self._events: list[int] = []

    def allocate(self, size_bytes: int) -> int:
        """Return the address of device memory, all zero: padding rows are valid indices from the start."""
        address = int(self._call("cuMemAlloc", max(size_bytes, 1)))
        self._device_memory.append(address)
        self._call("cuMemsetD8", address, 0, max(size_bytes, 1))
        return address

    def allocate_pinned(self, size_bytes: int) -> Array:
        """Return page-locked host memory as uint8, all zero."""
        address = int(self._call("cuMemHostAlloc", max(size_bytes, 1), 0))
        self._pinned_memory.append(address)
        memory = np.ctypeslib.as_array((ctypes.c_uint8 * max(size_bytes, 1)).from_address(address))
        memory[:] = 0
        return memory

    def register(self, address: int, size_bytes: int) -> bool:
        """Page-lock host memory that others allocated; False if the driver refuses, as beyond its limit."""
        if int(self._driver.cuMemHostRegister(address, size_bytes, 0)[0]) != 0:
            return False
        self._registered.append(address)
        return True

    def stream(self) -> int:
        """Return a new stream, which does not wait for the default one."""
        flags = self._driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        handle = int(self._call("cuStreamCreate", flags))
        self._streams.append(handle)
        return handle

    def copy_in(self, device: int, host: int, size_bytes: int, stream: int) -> None:
        """Copy from host to device, in the stream's order; by way of page-locked memory if `host` is not."""
        self._call("cuMemcpyHtoDAsync", device, host, size_bytes, stream)

    def copy_out(self, host: int, device: int, size_bytes: int, stream: int) -> None:
        """Copy from device to host, in the stream's order."""
        self._call("cuMemcpyDtoHAsync", host, device, size_bytes, stream)

    def wait(self, stream: int) -> None:
        """Return when the stream has finished all its work. Raises CudaError for any failure on the way."""
        self._call("cuStreamSynchronize", stream)

    def event(self) -> int:
        """Return a new event without a time, which is the cheapest."""
        handle = int(self._call("cuEventCreate", self._driver.CUevent_flags.CU_EVENT_DISABLE_TIMING))
        self._events.append(handle)
        return handle

    def record(self, event: int, stream: int) -> None:
        """Let the event happen when the stream has finished all its work so far."""
        self._call("cuEventRecord", event, stream)

    def wait_for(self, event: int, stream: int) -> None:
        """Make the stream's further work wait for the event as it was last recorded; return at once."""
        self._call("cuStreamWaitEvent", stream, event, 0)

    @contextmanager
    def capture(self, stream: int) -> Iterator[Captured]:
        """Record the work that the block gives to the stream, instead of executing it, for this thread alone."""
        captured = Captured()
        self._call("cuStreamBeginCapture", stream, self._capture_mode)
        try:
            yield captured
        except BaseException:
            self._driver.cuStreamEndCapture(stream)
            raise
        graph = self._call("cuStreamEndCapture", stream)
        try:
            captured.handle = int(self._call("cuGraphInstantiate", graph, 0))
        finally:
            self._driver.cuGraphDestroy(graph)

    def launch(self, graph: int, stream: int) -> None:
        """Execute a recorded graph with one call, in the stream's order."""
        self._call("cuGraphLaunch", graph, stream)

    def free_graph(self, graph: int) -> None:
        """Free a recorded graph."""
        self._call("cuGraphExecDestroy", graph)

    def close(self) -> None:
        """Free memory and streams; the context stays for its other users. May be repeated."""
        for free, addresses in (
            (self._driver.cuMemHostUnregister, self._registered),
            (self._driver.cuMemFreeHost, self._pinned_memory),
            (self._driver.cuMemFree, self._device_memory),
            (self._driver.cuStreamDestroy, self._streams),
            (self._driver.cuEventDestroy, self._events),
        ):
            while addresses:
                free(addresses.pop())

    def _call(self, name: str, *arguments: Any) -> Any:
        """Return the call's result (handles convert to int), or None if it has none. Raises CudaError."""
        status, *results = getattr(self._driver, name)(*arguments)
        if int(status) != 0:
            raise CudaError(f"{name} failed: {self._reason(status)}")
        return results[0] if results else None

    def _reason(self, status: Any) -> str:
        """Return a reason such as `CUDA_ERROR_OUT_OF_MEMORY: out of memory`."""
        _, name = self._driver.cuGetErrorName(status)
        _, text = self._driver.cuGetErrorString(status)
        return f"{name.decode()}: {text.decode()}" if name and text else str(status)
