"""Measure an engine standalone: graph replay, data on the GPU, no server. Fills TensorRT-RTX's kernel cache.

Runs in a process of its own: a CUDA context holds memory for as long as its process lives, and a GPU fault would
end the search.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from model_repo.runtime.tritune_gpu.driver import DriverCuda
from model_repo.runtime.tritune_gpu.engine import Bound, GpuEngine, Port, Shapes
from model_repo.runtime.tritune_gpu.opening import RUNTIME_CACHE_FILE
from optimizer.cached import put_file
from optimizer.engines.builder import build_plan, find_tensorrt
from optimizer.engines.cache import PLAN_FILE, EngineKey

KERNELS_OF_A_SIZE = "kernels-{}.part"

TIMED_FOR_S = 0.12
"""A round repeats a batch size for about 0.12 s. A tenth of that warms up the GPU before the first round."""


def engine_time_ms(
    engine: GpuEngine,
    cuda: DriverCuda,
    stream: int,
    shapes: Shapes,
    *,
    graph: bool,
    shared: Path | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return the best mean of three rounds of back-to-back executions with these whole shapes, in ms.

    `graph` True: a recorded CUDA graph is replayed. The first execution, in which libraries compile and allocate,
    does not count. Processes that are given the same folder `shared` measure one after the other; their first
    executions do not wait. `clock` returns seconds.
    """
    bound = engine.bind(shapes, allocated(cuda, engine.inputs, shapes))
    bound.put_outputs(allocated(cuda, engine.outputs, bound.output_shapes))
    bound.enqueue(stream)
    cuda.wait(stream)
    with nullcontext() if shared is None else in_turn(shared):
        return 1000 * _best_s(bound, engine, cuda, stream, graph=graph, clock=clock)


def _best_s(
    bound: Bound, engine: GpuEngine, cuda: DriverCuda, stream: int, *, graph: bool, clock: Callable[[], float]
) -> float:
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
        began = clock()
        for _ in range(count):
            once()
        cuda.wait(stream)
        return clock() - began

    guess_s = min(seconds_for(3) / 3, seconds_for(3) / 3)
    seconds_for(max(1, int(0.1 * TIMED_FOR_S / guess_s)))
    count = max(3, int(TIMED_FOR_S / guess_s))
    best_s = min(seconds_for(count) / count for _ in range(3))
    if handle is not None:
        cuda.free_graph(handle)
    return best_s


def allocated(cuda: DriverCuda, ports: tuple[Port, ...], shapes: Shapes) -> dict[str, int]:
    """Allocate device memory for these tensors; return the addresses by name."""
    sizes = {port.name: port.dtype.itemsize for port in ports}
    for name, shape in shapes.items():
        for size in shape:
            sizes[name] *= size
    return {name: cuda.allocate(size_bytes) for name, size_bytes in sizes.items()}


def load_engine(
    file: Path, backend: str, cuda: DriverCuda, stream: int, *, graphs: bool, tf32: bool = False
) -> GpuEngine:
    """Load the engine in this file, with the kernels beside it, on GPU 0."""
    if backend == "onnxruntime":
        from model_repo.runtime.tritune_gpu.onnxruntime_engine import OnnxRuntimeEngine

        return OnnxRuntimeEngine(file, device=0, stream=stream, cuda_graphs=graphs, tf32=tf32)
    from model_repo.runtime.tritune_gpu.tensorrt_engine import TensorRtEngine

    kernels = (file.parent / RUNTIME_CACHE_FILE, *sorted(file.parent.glob(KERNELS_OF_A_SIZE.format("*"))))
    return TensorRtEngine(file, cuda, backend=backend, kernels=kernels)


def compile_kernels(key: EngineKey, onnx_file: Path) -> bytes | None:
    """Build an engine, and return the kernels that it needs for its one profile.

    They serve engines with more profiles too (tests/gpu), which would also compile those of their first profile,
    whatever the size. Raises EngineFailed.
    """
    cuda, library = DriverCuda(0), find_tensorrt(key.backend)
    assert library is not None
    built = build_plan(library, key, onnx_file)
    with TemporaryDirectory() as folder:
        plan = Path(folder, PLAN_FILE)
        plan.write_bytes(built.plan)
        engine = load_engine(plan, key.backend, cuda, cuda.stream(), graphs=False)
    shapes = {name: largest for name, (_, _, largest) in key.profiles[0].items()}
    engine.bind(shapes, allocated(cuda, engine.inputs, shapes))
    return getattr(engine, "compiled_kernels", lambda: None)()


def timed(
    file: Path,
    backend: str,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    batch_sizes: Sequence[int],
    graphs: bool,
    tf32: bool = False,
    shared: Path | None = None,
) -> list[dict[str, float]]:
    """Measure these batch sizes; return `batch_size` and `batch_ms` of each, ascending.

    Kernels that TensorRT-RTX compiles meanwhile are written to the engine's folder. Without batch sizes the shapes
    are whole tensors, and only these are measured, as batch 1. `shared`: see `engine_time_ms`.
    """
    cuda = DriverCuda(0)
    stream = cuda.stream()
    engine = load_engine(file, backend, cuda, stream, graphs=graphs, tf32=tf32)
    rows = []
    for size in sorted(batch_sizes or (1,), reverse=True):
        whole = {name: (size, *shape) if batch_sizes else shape for name, shape in shapes.items()}
        try:
            batch_ms = engine_time_ms(engine, cuda, stream, whole, graph=graphs, shared=shared)
        except Exception:
            # ONNX Runtime allocates memory for each batch size: a smaller one may fit.
            if backend != "onnxruntime" or size == 1:
                raise
            continue
        rows.append({"batch_size": size, "batch_ms": batch_ms})
    keep_kernels(engine, file.parent)
    return rows[::-1]


@contextmanager
def in_turn(folder: Path) -> Iterator[None]:
    """Measure alone among the processes with this folder: two engines at once would each look slow."""
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def merge_kernels(file: Path, backend: str) -> None:
    """Merge the files of kernels next to the plan into the one that a server reads."""
    cuda = DriverCuda(0)
    keep_kernels(load_engine(file, backend, cuda, cuda.stream(), graphs=False), file.parent)


def keep_kernels(engine: GpuEngine, folder: Path) -> None:
    """Write all kernels that the engine has, read or compiled, into the one file that a server reads."""
    kernels = getattr(engine, "compiled_kernels", lambda: None)()
    if kernels:
        put_file(folder / RUNTIME_CACHE_FILE, kernels)
        for part in folder.glob(f"{KERNELS_OF_A_SIZE.format('*')}*"):
            part.unlink()
