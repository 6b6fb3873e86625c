"""Engines of TensorRT and TensorRT-RTX, which share one API."""

from __future__ import annotations

import importlib
import json
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from .engine import EngineMismatch, Port, Shapes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from .driver import DriverCuda

MODULES = {"tensorrt": ("tensorrt",), "tensorrt_rtx": ("tensorrt_rtx", "tensorrt_rtx_bindings")}
"""Backend -> the modules that may hold its API; the second is inside the first, which some installs lack."""

METADATA_FILE = "engine.json"
"""Next to the plan: the library and GPU that it was built for, and the command that rebuilds it."""

_SCRATCH_ALIGNMENT = 256


def import_tensorrt(backend: str) -> Any:
    """Return the library's module. Raises ImportError if it is not installed."""
    *others, last = MODULES[backend]
    for name in others:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    return importlib.import_module(last)


def check_fits(plan: Path, *, version: str, compute_capability: str) -> None:
    """Raise EngineMismatch if the plan's metadata names another library version or kind of GPU.

    A plan without metadata is not ours, and is loaded without this check.
    """
    path = plan.with_name(METADATA_FILE)
    if not path.exists():
        return
    built = json.loads(path.read_text())
    here = {"library_version": version, "compute_capability": compute_capability}
    for name, value in here.items():
        if built[name] != value:
            what = f"{plan.name} was built for {name.replace('_', ' ')} {built[name]}, and this is {value}."
            raise EngineMismatch(f"{what}\nBuild it anew: {built['rebuild']}")


class TensorRtEngine:
    """A plan file on one GPU. Its executions share scratch memory, so they must be on one stream.

    `kernels` are files of kernels that TensorRT-RTX compiled before; those that are missing do not matter.
    """

    captures_itself = False

    def __init__(self, plan: Path, cuda: DriverCuda, *, backend: str, kernels: Sequence[Path] = ()) -> None:
        self._trt = trt = import_tensorrt(backend)
        check_fits(plan, version=trt.__version__, compute_capability=cuda.compute_capability)
        self._logger = trt.Logger(trt.Logger.WARNING)
        self._runtime = trt.Runtime(self._logger)
        self._engine = self._runtime.deserialize_cuda_engine(plan.read_bytes())
        if self._engine is None:
            raise EngineMismatch(
                f"{backend} {trt.__version__} cannot load {plan.name}: it is damaged, or this GPU cannot run it.\n"
                "Build it anew: empty the engine cache (--cache-dir) and run optimize again."
            )
        ports = [self._port(index) for index in range(self._engine.num_io_tensors)]
        self.inputs = tuple(port for port, is_input in ports if is_input)
        self.outputs = tuple(port for port, is_input in ports if not is_input)
        self._strategy = trt.ExecutionContextAllocationStrategy.USER_MANAGED
        self._scratch_bytes = int(self._engine.device_memory_size_v2)
        unaligned = cuda.allocate(self._scratch_bytes + _SCRATCH_ALIGNMENT)
        self._scratch = -(-unaligned // _SCRATCH_ALIGNMENT) * _SCRATCH_ALIGNMENT
        self._cuda, self._stream = cuda, cuda.stream()
        self._contexts: WeakValueDictionary[Any, _Context] = WeakValueDictionary()
        self._settings, self._cache = self._runtime_settings(kernels)
        count = int(self._engine.num_optimization_profiles)
        self._profiles = [self._profile(index) for index in range(count)] if count > 1 else []
        self.batch_sizes = self._fixed_batch_sizes()

    def bind(self, shapes: Shapes, addresses: Mapping[str, int]) -> TensorRtBound:
        """See `engine.GpuEngine`. Inputs of the same shapes share a context, which takes 0.2 s to make."""
        key = tuple(sorted(shapes.items()))
        found = self._contexts.get(key)
        if found is None:
            found = self._contexts[key] = self._new_context(shapes)
        return TensorRtBound(found, addresses)

    def _new_context(self, shapes: Shapes) -> _Context:
        context = self._engine.create_execution_context(self._settings or self._strategy)
        if context is None:
            raise RuntimeError("TensorRT made no execution context: the GPU is out of memory, or see its log.")
        if self._scratch_bytes:
            context.set_device_memory(self._scratch, self._scratch_bytes)
        if self._profiles:
            context.set_optimization_profile_async(self._profile_for(shapes), self._stream)
            self._cuda.wait(self._stream)
        for name, shape in shapes.items():
            if not context.set_input_shape(name, shape):
                raise ValueError(self._outside(shapes))
        return _Context(context, [port.name for port in self.outputs])

    def compiled_kernels(self) -> bytes | None:
        """Return the kernels that TensorRT-RTX compiled for this GPU, for `kernels`; None for TensorRT."""
        return None if self._cache is None else bytes(self._cache.serialize())

    def layers(self, bound: TensorRtBound | None = None) -> str:
        """Return the engine inspector's description, one line per layer; with the shapes of `bound` if given."""
        inspector = self._engine.create_engine_inspector()
        if bound is not None:
            bound.describe_to(inspector)
        return str(inspector.get_engine_information(self._trt.LayerInformationFormat.ONELINE))

    def _port(self, index: int) -> tuple[Port, bool]:
        name = self._engine.get_tensor_name(index)
        dtype = np.dtype(self._trt.nptype(self._engine.get_tensor_dtype(name)))
        return Port(name=name, dtype=dtype), self._engine.get_tensor_mode(name) == self._trt.TensorIOMode.INPUT

    def _profile(self, index: int) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
        """Return the least and the largest whole shape of each input in an optimization profile."""
        found = {}
        for port in self.inputs:
            least, _, largest = self._engine.get_tensor_profile_shape(port.name, index)
            found[port.name] = tuple(least), tuple(largest)
        return found

    def _fixed_batch_sizes(self) -> tuple[int, ...]:
        """Return the batch size of each profile if there are several, and each is for one size only."""
        ends = [next(iter(profile.values())) for profile in self._profiles]
        fixed = all(least[:1] == largest[:1] for least, largest in ends)
        return tuple(largest[0] for _, largest in ends) if fixed else ()

    def _profile_for(self, shapes: Shapes) -> int:
        """Return the first profile for these shapes: they ascend, so it is the tightest. Raises ValueError."""
        for index, profile in enumerate(self._profiles):
            ends = ((shapes[name], *profile[name]) for name in shapes)
            if all(
                low <= size <= high
                for shape, least, largest in ends
                for size, low, high in zip(shape, least, largest, strict=True)
            ):
                return index
        raise ValueError(self._outside(shapes))

    def _outside(self, shapes: Shapes) -> str:
        profiles = "; ".join(
            ", ".join(f"{name} {least}..{largest}" for name, (least, largest) in profile.items())
            for profile in self._profiles or [self._profile(0)]
        )
        return f"{shapes} is outside the engine's profiles: {profiles}"

    def _runtime_settings(self, kernels: Sequence[Path]) -> tuple[Any, Any]:
        """Return the settings and kernel cache of TensorRT-RTX; (None, None) for TensorRT.

        TensorRT-RTX compiles kernels on first use, TensorRT at build time. Here they are compiled eagerly: a graph
        recorded while the compiler works in the background keeps slow fallbacks.
        """
        if not hasattr(self._engine, "create_runtime_config") or not hasattr(self._trt, "IRuntimeCache"):
            return None, None
        settings = self._engine.create_runtime_config()
        settings.set_execution_context_allocation_strategy(self._strategy)
        settings.dynamic_shapes_kernel_specialization_strategy = (
            self._trt.DynamicShapesKernelSpecializationStrategy.EAGER
        )
        cache = settings.create_runtime_cache()
        for file in kernels:
            if file.exists():
                cache.deserialize(file.read_bytes())  # another driver's is refused, and compiled anew
        settings.set_runtime_cache(cache)
        return settings, cache


class _Context:
    """An execution context, whose shapes never change: graphs that were recorded with it stay valid."""

    def __init__(self, context: Any, outputs: list[str]) -> None:
        self.tensorrt = context
        self.output_shapes: Shapes = {name: tuple(context.get_tensor_shape(name)) for name in outputs}
        for name, shape in self.output_shapes.items():
            if any(size < 0 for size in shape):
                raise RuntimeError(
                    f"The shape of {name} depends on the data: {shape}. This runtime needs it ahead."
                )


class TensorRtBound:
    """See `engine.Bound`."""

    def __init__(self, context: _Context, addresses: Mapping[str, int]) -> None:
        self._context = context
        self._addresses = dict(addresses)
        self.output_shapes = context.output_shapes

    def describe_to(self, inspector: Any) -> None:
        """Make this inspector describe this context's shapes instead of open ones."""
        inspector.execution_context = self._context.tensorrt

    def report_to(self, profiler: Any) -> None:
        """Make TensorRT report the ms of each layer to this IProfiler, in every execution from now on."""
        self._context.tensorrt.profiler = profiler

    def put_outputs(self, addresses: Mapping[str, int]) -> None:
        """See `engine.Bound`."""
        self._addresses.update({name: addresses[name] for name in self.output_shapes})

    def enqueue(self, stream: int) -> None:
        """See `engine.Bound`."""
        for name, address in self._addresses.items():
            self._context.tensorrt.set_tensor_address(name, address)
        if not self._context.tensorrt.execute_async_v3(stream):
            raise RuntimeError("TensorRT refused an execution; see its log.")
