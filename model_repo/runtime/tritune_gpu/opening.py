"""Open a warmed-up runner from a model's configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .driver import DriverCuda
from .runner import Runner

if TYPE_CHECKING:
    from pathlib import Path

    from .driver import Cuda
    from .engine import GpuEngine

RUNTIME_CACHE_FILE = "kernels.cache"
"""Next to a TensorRT-RTX plan: the kernels that were already compiled for this GPU."""


def open_runner(version_dir: Path, config: dict[str, Any], *, device: int) -> Runner:
    """Return a runner of the configuration's engine on this GPU; `config` is Triton's JSON.

    It reads the `parameters` `model_file`, `engine_backend`, `batch_sizes` (such as `1,2,4`), `cuda_graphs` and
    `tf32` ("1": yes), `input_path` (auto, pinned or direct), `gpu_wait` (block, spin or yield), `scratch` (shared
    or own: TensorRT's scratch memory).
    """
    parameters = {name: value["string_value"] for name, value in config["parameters"].items()}
    cuda = DriverCuda(device, wait=parameters.get("gpu_wait", "block"))
    stream = cuda.stream()
    runner = Runner(
        _engine(version_dir, parameters, cuda, stream, device),
        cuda,
        stream,
        max_batch_size=config["max_batch_size"],
        batch_sizes=[int(size) for size in parameters.get("batch_sizes", "").split(",") if size],
        cuda_graphs=parameters.get("cuda_graphs") == "1",
        input_path=_input_path(parameters),
    )
    shapes = {tensor["name"]: row_shape(tensor) for tensor in config["input"]}
    known = {name: shape for name, shape in shapes.items() if shape is not None}
    if len(known) == len(shapes):
        runner.warm_up(known)
    return runner


def row_shape(tensor: dict[str, Any]) -> tuple[int, ...] | None:
    """Return an input's shape past the batch, as the engine sees it; None if it may vary."""
    dims = tensor["dims"]
    if tensor.get("reshape") is not None:
        dims = tensor["reshape"].get("shape", [])
    shape = tuple(int(size) for size in dims)
    return None if -1 in shape else shape


def _input_path(parameters: dict[str, str]) -> Any:
    path = parameters.get("input_path", "auto")
    if path not in ("auto", "pinned", "direct"):
        raise ValueError(f"input_path {path!r} is not auto, pinned or direct")
    return path


def _engine(version_dir: Path, parameters: dict[str, str], cuda: Cuda, stream: int, device: int) -> GpuEngine:
    backend, file = parameters["engine_backend"], version_dir / parameters["model_file"]
    if backend == "onnxruntime":
        from .onnxruntime_engine import OnnxRuntimeEngine

        return OnnxRuntimeEngine(
            file,
            device=device,
            stream=stream,
            cuda_graphs=parameters.get("cuda_graphs") == "1",
            tf32=parameters.get("tf32") == "1",
        )
    from .tensorrt_engine import TensorRtEngine

    return TensorRtEngine(
        file,
        cuda,
        backend=backend,
        kernels=(version_dir / RUNTIME_CACHE_FILE,),
        own_scratch=parameters.get("scratch") == "own",
    )
