"""Open a warmed-up runner from a model's configuration, or several that share one engine."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .driver import DriverCuda
from .runner import Runner, Turns
from .slots import PATIENCE_S, SlotMemory, Tensors
from .timeline import record_if_asked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from .engine import GpuEngine

RUNTIME_CACHE_FILE = "kernels.cache"
"""Next to a TensorRT-RTX plan: the kernels that were already compiled for this GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """What serves one slot; `sizes` are the bytes of an element of each tensor, `close` gives its memory back."""

    tensors: Tensors
    memory: SlotMemory
    runner: Runner
    sizes: Mapping[str, int]
    close: Callable[[], None]


def open_runner(version_dir: Path, config: dict[str, Any], *, device: int) -> Runner:
    """Return a runner of the configuration's engine on this GPU; `config` is Triton's JSON.

    It reads the `parameters` `model_file`, `engine_backend`, `batch_sizes` (such as `1,2,4`), `cuda_graphs` and
    `tf32` ("1": yes).
    """
    record_if_asked()
    parameters = _parameters(config)
    cuda = DriverCuda(device)
    stream = cuda.stream()
    engine = _engine(version_dir, parameters, cuda, stream, device)
    runner = Runner(engine, cuda, stream, **_options(config, parameters))
    _warm_up(runner, config)
    return runner


def open_slots(version_dir: Path, config: dict[str, Any], *, device: int) -> Callable[[], Slot]:
    """Load the engine of TensorRT; return a function that makes a slot, to be called in the thread that serves it.

    One more parameter: `patience_s` (60: the server kills a runner that does not answer for so long).
    """
    record_if_asked()
    parameters = _parameters(config)
    shared = DriverCuda(device)
    engine = _engine(version_dir, parameters, shared, shared.stream(), device)
    turns = Turns(stream=shared.stream(), lock=threading.RLock())
    tensors = tensors_of(config)

    def opened() -> Slot:
        cuda = DriverCuda(device)
        stream = cuda.stream()
        memory = SlotMemory(cuda.register)
        try:
            runner = Runner(
                engine,
                cuda,
                stream,
                **_options(config, parameters),
                input_path="pinned",
                allocate_host=memory.allocate,
                turns=turns,
            )
            _warm_up(runner, config)
        except BaseException:
            cuda.close()
            memory.close()
            raise

        def close() -> None:
            with turns.lock:
                runner.close()
                cuda.close()
                memory.close()

        sizes = {port.name: port.dtype.itemsize for port in (*engine.inputs, *engine.outputs)}
        return Slot(tensors=tensors, memory=memory, runner=runner, sizes=sizes, close=close)

    return opened


def tensors_of(config: dict[str, Any]) -> Tensors:
    """Return the inputs and outputs of a configuration, Triton's JSON."""
    largest = int(config["max_batch_size"])
    shapes = {tensor["name"]: row_shape(tensor) for tensor in config["input"]}
    known = {name: (largest, *shape) if largest else shape for name, shape in shapes.items() if shape is not None}
    inputs, outputs = (
        tuple((tensor["name"], tensor["data_type"].removeprefix("TYPE_")) for tensor in config[kind])
        for kind in ("input", "output")
    )
    return Tensors(
        inputs=inputs,
        outputs=outputs,
        max_batch_size=largest,
        first_shapes=known if len(known) == len(shapes) else None,
        patience_s=float(_parameters(config).get("patience_s", PATIENCE_S)),
    )


def row_shape(tensor: dict[str, Any]) -> tuple[int, ...] | None:
    """Return an input's shape past the batch, as the engine sees it; None if it may vary."""
    dims = tensor["dims"]
    if tensor.get("reshape") is not None:
        dims = tensor["reshape"].get("shape", [])
    shape = tuple(int(size) for size in dims)
    return None if -1 in shape else shape


def _parameters(config: dict[str, Any]) -> dict[str, str]:
    return {name: value["string_value"] for name, value in config["parameters"].items()}


def _options(config: dict[str, Any], parameters: dict[str, str]) -> dict[str, Any]:
    return {
        "max_batch_size": config["max_batch_size"],
        "batch_sizes": [int(size) for size in parameters.get("batch_sizes", "").split(",") if size],
        "cuda_graphs": parameters.get("cuda_graphs") == "1",
    }


def _warm_up(runner: Runner, config: dict[str, Any]) -> None:
    shapes = {tensor["name"]: row_shape(tensor) for tensor in config["input"]}
    known = {name: shape for name, shape in shapes.items() if shape is not None}
    if len(known) == len(shapes):
        runner.warm_up(known)


def _engine(
    version_dir: Path, parameters: dict[str, str], cuda: DriverCuda, stream: int, device: int
) -> GpuEngine:
    backend, file = parameters["engine_backend"], version_dir / parameters["model_file"]
    if backend == "onnxruntime":
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # heeded at the import
        from .onnxruntime_engine import OnnxRuntimeEngine

        return OnnxRuntimeEngine(
            file,
            device=device,
            stream=stream,
            cuda_graphs=parameters.get("cuda_graphs") == "1",
            tf32=parameters.get("tf32") == "1",
        )
    from .tensorrt_engine import TensorRtEngine

    return TensorRtEngine(file, cuda, backend=backend, kernels=(version_dir / RUNTIME_CACHE_FILE,))
