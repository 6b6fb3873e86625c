"""Engines of TensorRT and TensorRT-RTX, which share one API."""

from __future__ import annotations

import importlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from .engine import EngineMismatch, Port, Shapes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from .driver import Cuda

MODULES = {"tensorrt": ("tensorrt",), "tensorrt_rtx": ("tensorrt_rtx", "tensorrt_rtx_bindings")}
"""Backend -> the modules that may carry its API; the second is inside the first, which some installs lack."""

METADATA_FILE = "engine.json"
"""Beside the plan: which library and GPU it was built for, and the command that builds it anew."""

_SCRATCH_ALIGNMENT = 256


def import_tensorrt(backend: str) -> Any:
    """The library's module. Raises ImportError where it is not installed."""
    *others, last = MODULES[backend]
    for name in others:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    return importlib.import_module(last)


def check_fits(plan: Path, *, version: str, compute_capability: str) -> None:
    """Raise EngineMismatch where the plan's metadata names another library version or kind of GPU.

    A plan without metadata is somebody else's, and is tried as it is.
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

    `own_scratch`: each set of shapes has scratch memory of its own, that TensorRT allocates; costs memory only.
    """

    captures_itself = False

    def __init__(
        self,
        plan: Path,
        cuda: Cuda,
        *,
        backend: str,
        runtime_cache: Path | None = None,
        own_scratch: bool = False,
    ) -> None:
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
        strategies = trt.ExecutionContextAllocationStrategy
        self._strategy = strategies.STATIC if own_scratch else strategies.USER_MANAGED
        self._scratch_bytes = 0 if own_scratch else int(self._engine.device_memory_size_v2)
        unaligned = cuda.allocate(self._scratch_bytes + _SCRATCH_ALIGNMENT)
        self._scratch = -(-unaligned // _SCRATCH_ALIGNMENT) * _SCRATCH_ALIGNMENT
        self._settings, self._cache = self._runtime_settings(runtime_cache)

    def bind(self, shapes: Shapes, addresses: Mapping[str, int]) -> TensorRtBound:
        """A context of its own: a graph recorded from one stays valid only while its shapes stay."""
        context = self._engine.create_execution_context(self._settings or self._strategy)
        if context is None:
            raise RuntimeError("TensorRT made no execution context: the GPU is out of memory, or see its log.")
        if self._scratch_bytes:
            context.set_device_memory(self._scratch, self._scratch_bytes)
        for name, shape in shapes.items():
            if not context.set_input_shape(name, shape):
                low, _, high = self._engine.get_tensor_profile_shape(name, 0)
                raise ValueError(f"{name} {shape} is outside the engine's profile {tuple(low)}..{tuple(high)}")
            context.set_tensor_address(name, addresses[name])
        return TensorRtBound(context, [port.name for port in self.outputs])

    def compiled_kernels(self) -> bytes | None:
        """What TensorRT-RTX compiled for this GPU so far, for `runtime_cache`; None for TensorRT."""
        return None if self._cache is None else bytes(self._cache.serialize())

    def layers(self, bound: TensorRtBound | None = None) -> str:
        """The engine inspector's description, a layer a line; with the shapes of `bound` where it is given."""
        inspector = self._engine.create_engine_inspector()
        if bound is not None:
            bound.describe_to(inspector)
        return str(inspector.get_engine_information(self._trt.LayerInformationFormat.ONELINE))

    def _port(self, index: int) -> tuple[Port, bool]:
        name = self._engine.get_tensor_name(index)
        dtype = np.dtype(self._trt.nptype(self._engine.get_tensor_dtype(name)))
        return Port(name=name, dtype=dtype), self._engine.get_tensor_mode(name) == self._trt.TensorIOMode.INPUT

    def _runtime_settings(self, cache_file: Path | None) -> tuple[Any, Any]:
        """TensorRT-RTX compiles kernels on first use; (None, None) for TensorRT, which did when it built.

        Eagerly: a graph recorded while the compiler still works in the background keeps the slow stand-ins.
        """
        if not hasattr(self._engine, "create_runtime_config") or not hasattr(self._trt, "IRuntimeCache"):
            return None, None
        settings = self._engine.create_runtime_config()
        settings.set_execution_context_allocation_strategy(self._strategy)
        settings.dynamic_shapes_kernel_specialization_strategy = (
            self._trt.DynamicShapesKernelSpecializationStrategy.EAGER
        )
        cache = settings.create_runtime_cache()
        if cache_file is not None and cache_file.exists():
            cache.deserialize(cache_file.read_bytes())  # one of another driver is refused, and compiled anew
        settings.set_runtime_cache(cache)
        return settings, cache


class TensorRtBound:
    """See `engine.Bound`."""

    def __init__(self, context: Any, outputs: list[str]) -> None:
        self._context = context
        self.output_shapes: Shapes = {name: tuple(context.get_tensor_shape(name)) for name in outputs}
        for name, shape in self.output_shapes.items():
            if any(size < 0 for size in shape):
                raise RuntimeError(
                    f"The shape of {name} depends on the data: {shape}. This runtime needs it ahead."
                )

    def describe_to(self, inspector: Any) -> None:
        """Let this inspector tell its own shapes instead of open ones."""
        inspector.execution_context = self._context

    def report_to(self, profiler: Any) -> None:
        """Have TensorRT tell this IProfiler the ms of each layer, in every execution from now on."""
        self._context.profiler = profiler

    def put_outputs(self, addresses: Mapping[str, int]) -> None:
        """See `engine.Bound`."""
        for name in self.output_shapes:
            self._context.set_tensor_address(name, addresses[name])

    def enqueue(self, stream: int) -> None:
        """See `engine.Bound`."""
        if not self._context.execute_async_v3(stream):
            raise RuntimeError("TensorRT refused an execution; its log says why.")
