"""Build bare engines for gpu_serving.py, and time them without a server."""

from __future__ import annotations

import time
import traceback
from functools import partial
from pathlib import Path
from typing import Any

from lib.gpu_results import MAX_BATCH, ROW_SHAPES, Note, save


def bare_engine(name: str, out: Path, work: Path, note: Note) -> dict[str, Any]:
    """Time TensorRT(-RTX) alone: graph replay and plain launches, data on the GPU."""
    built, seconds = build(name, work / "cache", note)
    result = {"library": f"{built.engine.backend} {built.metadata.library_version}", "build_s": seconds}
    result["executed"] = built.metadata.executed
    folder = dict(built.engine.files)["model.plan"].parent
    for graphs in (True, False):
        key = "graphs" if graphs else "launches"
        try:
            result[key] = timed_engine(folder, "model.plan", built.engine.backend, name, graphs, note)
        except Exception as error:
            result[key] = {"error": str(error)}
            note(traceback.format_exc())
        save(out, f"engine-{name}", result)
    return result


def ort_engine(name: str, out: Path, work: Path, note: Note) -> dict[str, Any]:
    """Time ONNX Runtime CUDA on the same file."""
    result: dict[str, Any] = {}
    for graphs in (True, False):
        key = "graphs" if graphs else "launches"
        try:
            result[key] = timed_engine(work, f"{name}.onnx", "onnxruntime", name, graphs, note, largest=1)
        except Exception as error:
            result[key] = {"error": str(error)}
            note(traceback.format_exc())
        save(out, f"ort-{name}", result)
    return result


def build(name: str, cache: Path, note: Note) -> Any:
    """Return the engine, from the cache or built, and the seconds that took, the model's check included."""
    from optimizer.engines.builder import installed_tensorrt
    from optimizer.engines.cache import EngineCache
    from optimizer.engines.from_variant import engine_key, engine_of
    from optimizer.machine.hardware import hardware
    from optimizer.model.onnx_model import read_model

    began = time.monotonic()
    model = read_model(cache.parent / f"{name}.onnx")
    read_s = time.monotonic() - began
    (gpu, *_) = hardware().gpus
    library = installed_tensorrt()[-1]
    key = engine_key(model, "fp16", library=library, gpu=gpu, max_batch_size=MAX_BATCH)
    built = engine_of(key, model, cache=EngineCache(cache))
    seconds = time.monotonic() - began
    note(f"{name}: {built.source} {built.metadata.executed} in {seconds:.2f} s (reading {read_s:.2f} s)")
    return built, seconds


def timed_engine(
    folder: Path,
    file: str,
    backend: str,
    name: str,
    graphs: bool,
    note: Note,
    *,
    largest: int = MAX_BATCH,
) -> dict[str, Any]:
    """Run `timing_child.timed` in its own process."""
    from model_repo.repository.config_pbtxt import graph_batch_sizes
    from optimizer.child import call_in_child
    from optimizer.engines.timing_child import timed

    sizes, shapes = graph_batch_sizes(largest), ROW_SHAPES[name]
    call = partial(timed, folder / file, backend, shapes, batch_sizes=sizes, graphs=graphs)  # type: ignore[arg-type]
    times = call_in_child(call)
    for row in times:
        per_s = 1000 * row["batch_size"] / row["batch_ms"]
        note(f"{backend} graphs={graphs} b{row['batch_size']}: {row['batch_ms']:.3f} ms, {per_s:,.0f}/s")
    return {"times": times}
