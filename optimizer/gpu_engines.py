"""The engines that compete on this machine: ONNX Runtime always, TensorRT and TensorRT-RTX with a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Literal

from model_repo.runtime.tritune_gpu.opening import RUNTIME_CACHE_FILE
from model_repo.spec import Engine
from optimizer.engine_cache import PLAN_FILE, EngineCache, entry_files
from optimizer.engines import EngineFailed, Target, engine_from_variant
from optimizer.tensorrt_library import installed_tensorrt
from search import events

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from optimizer.engines import BuiltEngine
    from optimizer.hardware import Gpu, Hardware
    from optimizer.onnx_model import Model
    from search.events import OnEvent

Device = Literal["cpu", "gpu"]

TIMES_FILE = "times.json"
"""Beside a plan: what it did on its own, and on which GPU."""

TIMING_LIMIT_S = 120.0


def engines_for(
    variants: Sequence[tuple[str, Model]],
    machine: Hardware,
    *,
    cache: EngineCache,
    max_batch_size: int,
    limit_ms: float,
    on_event: OnEvent = events.ignore,
) -> tuple[Engine, ...]:
    """The engines of these (precision, model) pairs, those of ONNX Runtime first.

    An engine that TensorRT cannot build is left out with a note, and so is one that alone takes longer than the
    limit. Raises CacheWriteFailed.
    """
    device = device_of(machine)
    engines = [onnxruntime_engine(model, precision, device=device) for precision, model in variants]
    if machine.gpus:
        engines += _tensorrt_engines(variants, machine.gpus[0], cache, max_batch_size, limit_ms, on_event)
    return tuple(engines)


def device_of(machine: Hardware) -> Device:
    """Where ONNX Runtime executes here."""
    return "gpu" if machine.gpus and "CUDAExecutionProvider" in machine.providers else "cpu"


def onnxruntime_engine(model: Model, precision: str = "fp32", *, device: Device = "cpu") -> Engine:
    """The model as it is, executed by ONNX Runtime."""
    return Engine(
        model_name=model.name,
        backend="onnxruntime",
        precision=precision,
        model_file="model.onnx",
        files=model.files,
        inputs=model.inputs,
        outputs=model.outputs,
        batched=model.batched,
        device=device,
    )


def _tensorrt_engines(
    variants: Sequence[tuple[str, Model]],
    gpu: Gpu,
    cache: EngineCache,
    max_batch_size: int,
    limit_ms: float,
    on_event: OnEvent,
) -> Iterator[Engine]:
    if gpu.compute_capability is None:
        on_event(events.Note(text=f"{gpu.name} does not tell its compute capability: no TensorRT", warning=True))
        return
    target = Target(compute_capability=gpu.compute_capability, name=gpu.name)
    for library in installed_tensorrt():
        for precision, model in variants:
            label, largest = f"{library.backend} {precision}", max_batch_size if model.batched else 0
            on_event(events.PhaseStarted(name="prepare", detail=f"{label} engine"))
            try:
                built = engine_from_variant(
                    model, precision, library=library, target=target, cache=cache, max_batch_size=largest
                )
                alone_ms = _time_alone(built, gpu, largest)
            except EngineFailed as failure:
                on_event(events.Note(text=f"no {label} engine: {str(failure).splitlines()[0]}", warning=True))
                continue
            if not alone_ms <= limit_ms:
                text = f"no {label} engine: alone it takes {alone_ms:.1f} ms, over the limit"
                on_event(events.Note(text=text, warning=True))
                continue
            on_event(events.Note(text=_origin(built, label)))
            yield _with_kernels(built.engine)


def _origin(built: BuiltEngine, label: str) -> str:
    how = "from the cache" if built.source == "cache" else f"built in {built.metadata.build_s:.1f} s"
    return f"{label} engine {how}"


def _time_alone(built: BuiltEngine, gpu: Gpu, max_batch_size: int) -> float:
    """Milliseconds of batch 1 on the bare engine, measured in a process of its own, and kept with the engine.

    Raises EngineFailed where it does not run.
    """
    folder = dict(built.engine.files)[PLAN_FILE].parent
    shapes = {spec.name: spec.concrete_shape for spec in built.engine.inputs}
    known = _known_times(folder, gpu)
    if known is None:
        known = _measured(
            [str(folder), PLAN_FILE, built.engine.backend, str(max_batch_size), "1", json.dumps(shapes)], gpu
        )
        text = json.dumps({"gpu": gpu.uuid or gpu.name, "driver": gpu.driver, "times": known}, indent=1)
        EngineCache.put_beside(folder / TIMES_FILE, text.encode())
    return float(min(row["batch_ms"] for row in known if row["batch_size"] == 1))


def _measured(arguments: list[str], gpu: Gpu) -> list[dict[str, float]]:
    command = [sys.executable, "-m", "optimizer.engine_time", *arguments]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=TIMING_LIMIT_S, check=True)
    except subprocess.TimeoutExpired as error:
        what = f"it does not run on {gpu.name} within {TIMING_LIMIT_S:g} s"
        raise EngineFailed(what, "ONNX Runtime can still serve the model.") from error
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise EngineFailed(
            f"it does not run on {gpu.name}: {last}", "ONNX Runtime can still serve the model."
        ) from error
    times: list[dict[str, float]] = json.loads(answer.stdout.splitlines()[-1])["times"]
    return times


def _known_times(folder: Path, gpu: Gpu) -> list[dict[str, float]] | None:
    """What was measured before on this very GPU and driver; None where nothing was."""
    try:
        found = json.loads((folder / TIMES_FILE).read_text())
    except (OSError, ValueError):
        return None
    same = (found.get("gpu"), found.get("driver")) == (gpu.uuid or gpu.name, gpu.driver)
    return found["times"] if same else None


def _with_kernels(engine: Engine) -> Engine:
    """The engine with the kernels that were compiled for it since it was built."""
    from dataclasses import replace

    files = dict(engine.files)
    fresh = dict(entry_files(files[PLAN_FILE].parent))
    return replace(engine, files=tuple(fresh.items())) if RUNTIME_CACHE_FILE in fresh else engine
