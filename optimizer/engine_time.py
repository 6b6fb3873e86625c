"""How fast an engine is on its own: graph replay, data on the GPU, no server. Fills TensorRT-RTX's kernel cache.

    python -m optimizer.engine_time FOLDER FILE BACKEND MAX_BATCH GRAPHS SHAPES [own-scratch] [tf32]

One JSON object on stdout. A process of its own, because a CUDA context holds memory for as long as its process
lives, and because a GPU fault would take the search with it.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from model_repo.config_pbtxt import graph_batch_sizes
from model_repo.runtime.tritune_gpu.driver import DriverCuda
from model_repo.runtime.tritune_gpu.opening import RUNTIME_CACHE_FILE
from optimizer.engine_cache import EngineCache

if TYPE_CHECKING:
    from model_repo.runtime.tritune_gpu.driver import Cuda
    from model_repo.runtime.tritune_gpu.engine import GpuEngine, Port, Shapes

LEAST_S = 0.12
"""Each batch size is repeated for about so long, after a tenth of it to warm up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTime:
    """One batch size on the bare engine. `first_s` is what its first execution took: compiling, allocating."""

    batch_size: int
    batch_ms: float
    first_s: float

    @property
    def inferences_per_s(self) -> float:
        """Rows per second, one batch after the other."""
        return 1000 * self.batch_size / self.batch_ms


def engine_time(
    engine: GpuEngine, cuda: Cuda, stream: int, shapes: Shapes, *, batch_size: int, graph: bool
) -> EngineTime:
    """The mean of back-to-back executions of these whole shapes; `graph` replays a recorded graph of it."""
    started = time.monotonic()
    bound = engine.bind(shapes, allocated(cuda, engine.inputs, shapes))
    bound.put_outputs(allocated(cuda, engine.outputs, bound.output_shapes))
    bound.enqueue(stream)
    cuda.wait(stream)
    first_s = time.monotonic() - started
    handle: int | None = None
    if graph and not engine.captures_itself:
        with cuda.capture(stream) as captured:
            bound.enqueue(stream)
        handle = captured.handle

    def once() -> None:
        if handle is None:
            bound.enqueue(stream)
        else:
            cuda.launch(handle, stream)

    def seconds_for(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            once()
        cuda.wait(stream)
        return time.perf_counter() - began

    guess_s = min(seconds_for(3) / 3, seconds_for(3) / 3)
    seconds_for(max(1, int(0.1 * LEAST_S / guess_s)))
    count = max(3, int(LEAST_S / guess_s))
    best_s = min(seconds_for(count) / count for _ in range(3))
    if handle is not None:
        cuda.free_graph(handle)
    return EngineTime(batch_size=batch_size, batch_ms=1000 * best_s, first_s=first_s)


def allocated(cuda: Cuda, ports: tuple[Port, ...], shapes: Shapes) -> dict[str, int]:
    """Device memory for these tensors, by name: their addresses."""
    sizes = {port.name: port.dtype.itemsize for port in ports}
    for name, shape in shapes.items():
        for size in shape:
            sizes[name] *= size
    return {name: cuda.allocate(size_bytes) for name, size_bytes in sizes.items()}


def load_engine(
    folder: Path,
    file: str,
    backend: str,
    cuda: Cuda,
    stream: int,
    *,
    graphs: bool,
    own_scratch: bool = False,
    tf32: bool = False,
) -> GpuEngine:
    """The engine in this folder, on GPU 0."""
    if backend == "onnxruntime":
        from model_repo.runtime.tritune_gpu.onnxruntime_engine import OnnxRuntimeEngine

        return OnnxRuntimeEngine(folder / file, device=0, stream=stream, cuda_graphs=graphs, tf32=tf32)
    from model_repo.runtime.tritune_gpu.tensorrt_engine import TensorRtEngine

    cache = folder / RUNTIME_CACHE_FILE
    return TensorRtEngine(folder / file, cuda, backend=backend, runtime_cache=cache, own_scratch=own_scratch)


def main(arguments: list[str]) -> None:
    """Measure the batch sizes worth a graph, print them, and keep what TensorRT-RTX compiled on the way.

    A maximum batch of 0 means that the shapes are whole tensors: then these alone are measured, as batch 1.
    """
    folder, file, backend, largest, graphs, shapes_text, *options = arguments
    cuda = DriverCuda(0)
    stream = cuda.stream()
    began = time.monotonic()
    engine = load_engine(
        Path(folder),
        file,
        backend,
        cuda,
        stream,
        graphs=graphs == "1",
        own_scratch="own-scratch" in options,
        tf32="tf32" in options,
    )
    loading_s = time.monotonic() - began
    shapes = {name: tuple(shape) for name, shape in json.loads(shapes_text).items()}
    rows = []
    for size in reversed(graph_batch_sizes(int(largest)) or (1,)):
        whole = {name: (size, *shape) if int(largest) else shape for name, shape in shapes.items()}
        try:
            seen = engine_time(engine, cuda, stream, whole, batch_size=size, graph=graphs == "1")
        except Exception:
            # ONNX Runtime takes memory as it goes: a smaller batch may fit.
            if backend != "onnxruntime" or size == 1:
                raise
            continue
        rows.append({**asdict(seen), "per_s": seen.inferences_per_s})
    kernels = getattr(engine, "compiled_kernels", lambda: None)()
    if kernels:
        EngineCache.put_beside(Path(folder, RUNTIME_CACHE_FILE), kernels)
    print(json.dumps({"loading_s": loading_s, "times": rows[::-1]}))  # noqa: T201 - the result of this process


if __name__ == "__main__":
    main(sys.argv[1:])
