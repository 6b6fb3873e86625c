"""Bare engines for gpu_serving.py: built, and timed without a server."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import traceback
from pathlib import Path

from gpu_models import MAX_BATCH, ROW_SHAPES
from gpu_results import save


def bare_engine(name: str, out: Path, work: Path, note) -> dict:
    """TensorRT(-RTX) alone: graph replay and plain launches, data on the GPU."""
    built, seconds = build(name, work / "cache", note)
    result = {"library": f"{built.engine.backend} {built.metadata.library_version}", "build_s": seconds}
    result["executed"] = built.metadata.executed
    folder = dict(built.engine.files)["model.plan"].parent
    for scratch in ("shared", "own"):
        result["scratch"] = scratch
        for graphs in (True, False):
            key = "graphs" if graphs else "launches"
            try:
                result[key] = timed_engine(
                    folder, "model.plan", built.engine.backend, name, graphs, note, scratch=scratch
                )
            except Exception as error:
                result[key] = {"error": str(error)}
                note(traceback.format_exc())
            save(out, f"engine-{name}", result)
        if any("times" in result[key] for key in ("graphs", "launches")):
            break
    return result


def ort_engine(name: str, out: Path, work: Path, note) -> dict:
    """ONNX Runtime CUDA on the same file."""
    result: dict = {}
    for graphs in (True, False):
        key = "graphs" if graphs else "launches"
        try:
            result[key] = timed_engine(work, f"{name}.onnx", "onnxruntime", name, graphs, note, largest=1)
        except Exception as error:
            result[key] = {"error": str(error)}
            note(traceback.format_exc())
        save(out, f"ort-{name}", result)
    return result


def build(name: str, cache: Path, note):
    """The engine from the cache, or built; and the seconds that took, the model's check included."""
    from optimizer.engines import EngineCache, Target, engine_from_variant
    from optimizer.hardware import hardware
    from optimizer.onnx_model import read_model
    from optimizer.tensorrt_library import installed_tensorrt

    began = time.monotonic()
    model = read_model(cache.parent / f"{name}.onnx")
    read_s = time.monotonic() - began
    (gpu, *_) = hardware().gpus
    library = installed_tensorrt()[-1]
    built = engine_from_variant(
        model,
        "fp16",
        library=library,
        target=Target(compute_capability=gpu.compute_capability or "9.0", name=gpu.name),
        cache=EngineCache(cache),
        max_batch_size=MAX_BATCH,
    )
    seconds = time.monotonic() - began
    note(f"{name}: {built.source} {built.metadata.executed} in {seconds:.2f} s (reading {read_s:.2f} s)")
    return built, seconds


def timed_engine(
    folder: Path,
    file: str,
    backend: str,
    name: str,
    graphs: bool,
    note,
    *,
    largest: int = MAX_BATCH,
    scratch: str = "shared",
) -> dict:
    """`optimizer.engine_time` in a process of its own."""
    command = [sys.executable, "-m", "optimizer.engine_time", str(folder), file, backend, str(largest)]
    answer = subprocess.run(
        [*command, str(int(graphs)), json.dumps(ROW_SHAPES[name]), *(["own-scratch"] if scratch == "own" else [])],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    note(answer.stderr)
    if answer.returncode != 0:
        raise RuntimeError(f"engine_time ended with {answer.returncode}: {answer.stderr[-2000:]}")
    times = json.loads(answer.stdout.splitlines()[-1])
    for row in times["times"]:
        note(f"{backend} graphs={graphs} b{row['batch_size']}: {row['batch_ms']:.3f} ms, {row['per_s']:,.0f}/s, "
             f"first {row['first_s']:.2f} s")  # fmt: skip
    return times
