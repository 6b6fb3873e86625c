"""Time an engine standalone, as a whole or per layer; `breakdown` calls this in a child process."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from optimizer.errors import RunFailed
from optimizer.model.ort_child import Tensors
from optimizer.profiling.layers import LayerTime, layers_from_trace, with_work, with_work_of_nodes

PROFILED_FOR_S = 0.4
"""An execution is repeated for about 0.4 s in all."""

MIN, MAX = 3, 300
MAX_TRACED = 45
"""At most 45 executions are traced: ONNX Runtime writes about 1 kB per node and execution."""


def seconds_each(once: Callable[[], object], *, most: int = MAX) -> tuple[float, int]:
    """Return the best mean of three rounds, in seconds, and the number of executions in all rounds."""
    once()
    guess_s = min(_timed(once, 1), _timed(once, 1))
    each = min(most, max(MIN, int(PROFILED_FOR_S / max(guess_s, 1e-9)))) // 3
    return min(_timed(once, each) for _ in range(3)), 3 * each


def _timed(once: Callable[[], object], count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        once()
    return (time.perf_counter() - began) / count


def _whole(request: Any, feed: Tensors) -> dict[str, Any]:
    """Return the mean ms of an execution; on a GPU, also with the other setting of CUDA graphs."""
    if request["device"] == "cpu":
        session = _session(request, None)
        return {"execution_ms": 1000 * seconds_each(lambda: session.run(None, feed))[0]}
    times = {graphs: _on_gpu(request, feed, graphs=graphs) for graphs in (True, False)}
    chosen = bool(request["graphs"])
    return {"execution_ms": times[chosen], "other_graph_ms": times[not chosen]}


def _on_gpu(request: Any, feed: Tensors, *, graphs: bool) -> float:
    from model_repo.runtime.tritune_gpu.driver import DriverCuda
    from optimizer.engines.timing_child import engine_time_ms, load_engine

    with closing(DriverCuda(0)) as cuda:
        stream = cuda.stream()
        engine = load_engine(Path(request["file"]), request["backend"], cuda, stream, graphs=graphs)
        shapes = {name: array.shape for name, array in feed.items()}
        return engine_time_ms(engine, cuda, stream, shapes, graph=graphs)


def _layers(request: Any, feed: Tensors) -> dict[str, Any]:
    """Return the mean ms of each layer; on a GPU, each layer ends before the next one begins."""
    if request["backend"] == "onnxruntime":
        os.environ["CUDA_LAUNCH_BLOCKING"] = "1"  # ONNX Runtime's profile has the CPU time of each launch
        return {"layers": _profiled_by_onnxruntime(request, feed)}
    return {"layers": _profiled_by_tensorrt(request, feed)}


def _profiled_by_onnxruntime(request: Any, feed: Tensors) -> tuple[LayerTime, ...]:
    """Return times as the engine is served, and work from a second run: profiles leave out packed weights."""
    session = _session(request, "times")
    _, executions = seconds_each(lambda: session.run(None, feed), most=MAX_TRACED)
    times = layers_from_trace(_trace(session), executions=executions)
    session = _session(request, "work", packed=False)
    session.run(None, feed)
    return with_work(times, layers_from_trace(_trace(session), executions=1))


def _trace(session: Any) -> Any:
    return json.loads(Path(session.end_profiling()).read_text())


def _session(request: Any, trace: str | None, *, packed: bool = True) -> Any:
    """Open a session as `model_repo/runtime` does for serving, with a profile if `trace` names one."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if not request["optimized"]:  # then the nodes keep their names in the file
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = request["threads"]
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.disable_prepacking", str(int(not packed)))
    if trace is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(tempfile.gettempdir(), trace))
    providers = ["CPUExecutionProvider"]
    if request["device"] == "gpu":
        onnxruntime.preload_dlls()
        providers.insert(0, "CUDAExecutionProvider")
    return onnxruntime.InferenceSession(request["file"], options, providers=providers)


def _profiled_by_tensorrt(request: Any, feed: Tensors) -> tuple[LayerTime, ...]:
    from model_repo.runtime.tritune_gpu.driver import DriverCuda
    from model_repo.runtime.tritune_gpu.tensorrt_engine import TensorRtEngine, import_tensorrt
    from optimizer.engines.builder import layers_from_description
    from optimizer.engines.timing_child import allocated, load_engine

    cuda = DriverCuda(0)
    stream = cuda.stream()
    engine = load_engine(Path(request["file"]), request["backend"], cuda, stream, graphs=False)
    assert isinstance(engine, TensorRtEngine)
    shapes = {name: array.shape for name, array in feed.items()}
    bound = engine.bind(shapes, allocated(cuda, engine.inputs, shapes))
    bound.put_outputs(allocated(cuda, engine.outputs, bound.output_shapes))

    def once() -> None:
        bound.enqueue(stream)
        cuda.wait(stream)

    seconds_each(once)  # kernels are compiled and clocks are up
    profiler = layer_profiler(import_tensorrt(request["backend"]))
    bound.report_to(profiler)
    seconds_each(once)
    return with_work_of_nodes(
        profiler.layers(),
        layers_from_description(engine.layers(bound)),
        request["nodes"],
        batch_size=request["batch_size"],
    )


def layer_profiler(trt: Any) -> Any:
    """Return an IProfiler that keeps the ms of each layer."""

    class LayerProfiler(trt.IProfiler):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProfiler.__init__(self)
            self.seen: dict[str, list[float]] = defaultdict(list)

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            self.seen[layer_name].append(ms)

        def layers(self) -> tuple[LayerTime, ...]:
            """Return the layers with their mean ms, in the order of execution."""
            return tuple(
                LayerTime(name=name, operator="?", ms=sum(seen) / len(seen)) for name, seen in self.seen.items()
            )

    return LayerProfiler()


def profiled(request: Any, feed: Tensors) -> dict[str, Any]:
    """Return the requested times. Every failure is raised as RunFailed."""
    try:
        return (_layers if request["layers"] else _whole)(request, feed)
    except Exception as error:  # the libraries have no common base for their errors
        raise RunFailed("run", str(error) or type(error).__name__) from error
