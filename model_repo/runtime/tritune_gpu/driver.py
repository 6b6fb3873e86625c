"""The CUDA driver as the runtime needs it: a few checked calls, with addresses and handles as plain integers."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

Array = np.ndarray[Any, Any]

WAITS = ("block", "spin", "yield")
"""How a thread waits for the GPU: asleep (spares the core), busy (soonest), busy but polite."""


class CudaError(RuntimeError):
    """A call of the CUDA driver failed; the text names the call and the driver's reason."""


class Captured:
    """The graph that a `capture` block recorded; `handle` is there once the block has ended."""

    handle: int = 0


class Cuda(Protocol):
    """What the runtime asks of a GPU. Memory lives until `close`."""

    compute_capability: str  # "8.6"

    def allocate(self, size_bytes: int) -> int:
        """The address of that much device memory, all zero."""
        ...

    def allocate_pinned(self, size_bytes: int) -> Array:
        """Page-locked host memory as uint8, all zero."""
        ...

    def register(self, address: int, size_bytes: int) -> bool:
        """Page-lock host memory that somebody else allocated; False where the driver will not."""
        ...

    def stream(self) -> int:
        """A new stream."""
        ...

    def copy_in(self, device: int, host: int, size_bytes: int, stream: int) -> None:
        """Host to device, in the stream's order."""
        ...

    def copy_out(self, host: int, device: int, size_bytes: int, stream: int) -> None:
        """Device to host, in the stream's order."""
        ...

    def wait(self, stream: int) -> None:
        """Return when the stream has done all it was given. Raises CudaError for what failed on the way."""
        ...

    def capture(self, stream: int) -> Any:
        """For `with`: what the block gives to the stream is recorded in its Captured, and not carried out."""
        ...

    def launch(self, graph: int, stream: int) -> None:
        """Carry out a recorded graph, in the stream's order."""
        ...

    def free_graph(self, graph: int) -> None:
        """Forget a recorded graph."""
        ...

    def close(self) -> None:
        """Give all memory back. May be repeated."""
        ...


class DriverCuda:
    """The GPU with this number, through NVIDIA's `cuda-bindings`; its primary context, which libraries share."""

    def __init__(self, device: int = 0, *, wait: str = "block") -> None:
        if wait not in WAITS:
            raise ValueError(f"wait {wait!r} is not one of {', '.join(WAITS)}")
        from cuda.bindings import driver

        self._driver = driver
        self._call("cuInit", 0)
        self._device = self._call("cuDeviceGet", device)
        # Refused by old drivers where the context is in use already; it then waits as its first user chose.
        driver.cuDevicePrimaryCtxSetFlags(self._device, {"block": 4, "spin": 1, "yield": 2}[wait])
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

    def allocate(self, size_bytes: int) -> int:
        """Zeroed: padding rows of a batch are then valid indices before anything was served."""
        address = int(self._call("cuMemAlloc", max(size_bytes, 1)))
        self._device_memory.append(address)
        self._call("cuMemsetD8", address, 0, max(size_bytes, 1))
        return address

    def allocate_pinned(self, size_bytes: int) -> Array:
        """Page-locked and zeroed."""
        address = int(self._call("cuMemHostAlloc", max(size_bytes, 1), 0))
        self._pinned_memory.append(address)
        memory = np.ctypeslib.as_array((ctypes.c_uint8 * max(size_bytes, 1)).from_address(address))
        memory[:] = 0
        return memory

    def register(self, address: int, size_bytes: int) -> bool:
        """False where the driver refuses: out of lockable memory, or memory that cannot be locked."""
        if int(self._driver.cuMemHostRegister(address, size_bytes, 0)[0]) != 0:
            return False
        self._registered.append(address)
        return True

    def stream(self) -> int:
        """A stream that does not wait for the default one."""
        flags = self._driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        handle = int(self._call("cuStreamCreate", flags))
        self._streams.append(handle)
        return handle

    def copy_in(self, device: int, host: int, size_bytes: int, stream: int) -> None:
        """At once where `host` is page-locked; else the driver copies it aside first."""
        self._call("cuMemcpyHtoDAsync", device, host, size_bytes, stream)

    def copy_out(self, host: int, device: int, size_bytes: int, stream: int) -> None:
        """Device to host."""
        self._call("cuMemcpyDtoHAsync", host, device, size_bytes, stream)

    def wait(self, stream: int) -> None:
        """As the constructor's `wait` says."""
        self._call("cuStreamSynchronize", stream)

    @contextmanager
    def capture(self, stream: int) -> Iterator[Captured]:
        """Only this thread's calls are bound to the capture's rules."""
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
        """One call, however many copies and kernels it holds."""
        self._call("cuGraphLaunch", graph, stream)

    def free_graph(self, graph: int) -> None:
        """Forget a recorded graph."""
        self._call("cuGraphExecDestroy", graph)

    def close(self) -> None:
        """Give memory and streams back; the context stays with whoever else uses it."""
        for free, addresses in (
            (self._driver.cuMemHostUnregister, self._registered),
            (self._driver.cuMemFreeHost, self._pinned_memory),
            (self._driver.cuMemFree, self._device_memory),
            (self._driver.cuStreamDestroy, self._streams),
        ):
            while addresses:
                free(addresses.pop())

    def _call(self, name: str, *arguments: Any) -> Any:
        """The call's result; an integer-like handle where it gives one, None where it gives nothing."""
        status, *results = getattr(self._driver, name)(*arguments)
        if int(status) != 0:
            raise CudaError(f"{name} failed: {self._reason(status)}")
        return results[0] if results else None

    def _reason(self, status: Any) -> str:
        """Such as `CUDA_ERROR_OUT_OF_MEMORY: out of memory`."""
        _, name = self._driver.cuGetErrorName(status)
        _, text = self._driver.cuGetErrorString(status)
        return f"{name.decode()}: {text.decode()}" if name and text else str(status)
