"""The engines that compete on this machine: ONNX Runtime always, TensorRT and TensorRT-RTX with a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Literal, TypeAlias

from model_repo.runtime.tritune_gpu.opening import RUNTIME_CACHE_FILE
from model_repo.spec import Engine
from optimizer.engine_cache import PLAN_FILE, EngineCache, entry_files
from optimizer.engine_run import EngineRunner
from optimizer.engines import EngineFailed, Target, engine_from_variant
from optimizer.onnx_run import RunFailed
from optimizer.tensorrt_library import installed_tensorrt
from search import events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from optimizer.engines import BuiltEngine
    from optimizer.hardware import Gpu, Hardware
    from optimizer.onnx_model import Model
    from optimizer.precisions import Precision
    from optimizer.tensorrt_library import TensorRt
    from search.accuracy_record import AccuracyRecord
    from search.events import OnEvent

Device = Literal["cpu", "gpu"]
Judge: TypeAlias = "Callable[[EngineRunner, Precision], AccuracyRecord]"
"""Compares what an engine of a precision gives with fp32."""

TIMES_FILE = "times.json"
"""Beside a plan: what it did on its own, and on which GPU."""

TIMING_LIMIT_S = 120.0


def engines_for(
    variants: Sequence[tuple[Precision, Model]],
    machine: Hardware,
    *,
    cache: EngineCache,
    max_batch_size: int,
    limit_ms: float,
    may_build: bool = True,
    judge: Judge | None = None,
    on_event: OnEvent = events.ignore,
) -> tuple[Engine, ...]:
    """The engines of these (precision, model) pairs, those of ONNX Runtime first.

    `may_build` False: nothing is built or run, only engines that are in the cache compete. `judge` compares what
    an engine of TensorRT gives with fp32; one that fails is left out too.
    An engine that TensorRT cannot build is left out with a note, and so is one that alone takes longer than the
    limit. Raises CacheWriteFailed.
    """
    device = device_of(machine)
    engines = [onnxruntime_engine(model, precision, device=device) for precision, model in variants]
    if machine.gpus:
        tensorrt = _TensorRtEngines(
            gpu=machine.gpus[0],
            cache=cache,
            max_batch_size=max_batch_size,
            limit_ms=limit_ms,
            judge=judge if may_build else None,
            may_build=may_build,
            on_event=on_event,
        )
        engines += tensorrt.of(variants)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _TensorRtEngines:
    """Builds and times the engines for one GPU, and tells why it leaves some out."""

    gpu: Gpu
    cache: EngineCache
    max_batch_size: int
    limit_ms: float
    may_build: bool
    judge: Judge | None
    on_event: OnEvent

    def of(self, variants: Sequence[tuple[Precision, Model]]) -> Iterator[Engine]:
        """One for each library and variant, where it works out."""
        if self.gpu.compute_capability is None:
            self._note(f"{self.gpu.name} does not tell its compute capability: no TensorRT", warning=True)
            return
        target = Target(compute_capability=self.gpu.compute_capability, name=self.gpu.name)
        for library, (precision, model) in product(installed_tensorrt(), variants):
            label = f"{library.backend} {precision}"
            self.on_event(events.PhaseStarted(name="prepare", detail=f"{label} engine"))
            try:
                yield self._engine(model, precision, library, target, label)
            except EngineFailed as failure:
                self._note(f"no {label} engine: {str(failure).splitlines()[0]}", warning=True)

    def _engine(self, model: Model, precision: Precision, library: TensorRt, target: Target, label: str) -> Engine:
        largest = self.max_batch_size if model.batched else 0
        built = engine_from_variant(
            model,
            precision,
            library=library,
            target=target,
            cache=self.cache,
            max_batch_size=largest,
            may_build=self.may_build,
        )
        alone_ms = self._alone_ms(built, largest)
        if alone_ms is not None and not alone_ms <= self.limit_ms:
            raise EngineFailed(f"alone it takes {alone_ms:.1f} ms, over the limit", "Other engines are tried.")
        if self.judge is not None:
            self._check_accuracy(built, model, precision)
        how = "from the cache" if built.source == "cache" else f"built in {built.metadata.build_s:.1f} s"
        self._note(f"{label} engine {how}")
        return _with_kernels(built.engine)

    def _alone_ms(self, built: BuiltEngine, largest: int) -> float | None:
        """Batch 1 on the bare engine, measured in a process of its own and kept with the engine.

        None where nothing may be run. Raises EngineFailed where the engine does not run.
        """
        folder = dict(built.engine.files)[PLAN_FILE].parent
        times = _known_times(folder, self.gpu)
        if times is None:
            if not self.may_build:
                return None
            shapes = json.dumps({spec.name: spec.concrete_shape for spec in built.engine.inputs})
            times = _measured([str(folder), PLAN_FILE, built.engine.backend, str(largest), "1", shapes], self.gpu)
            found = {"gpu": self.gpu.uuid or self.gpu.name, "driver": self.gpu.driver, "times": times}
            EngineCache.put_beside(folder / TIMES_FILE, json.dumps(found, indent=1).encode())
        return min(row["batch_ms"] for row in times if row["batch_size"] == 1)

    def _check_accuracy(self, built: BuiltEngine, model: Model, precision: Precision) -> None:
        """Raises EngineFailed where the engine's results are not close enough to fp32, or there are none."""
        assert self.judge is not None
        runner = EngineRunner(engine=built.engine, variant=model, library_version=built.metadata.library_version)
        try:
            record = self.judge(runner, precision)
        except RunFailed as error:
            what = f"it does not run on {self.gpu.name}: {' '.join(error.reason.split())}"
            raise EngineFailed(what, "ONNX Runtime can still serve the model.") from error
        if not record.passed:
            raise EngineFailed(f"not close enough to fp32: {record.reason}", "Other engines are tried.")

    def _note(self, text: str, *, warning: bool = False) -> None:
        self.on_event(events.Note(text=text, warning=warning))


def _measured(arguments: list[str], gpu: Gpu) -> list[dict[str, float]]:
    command = [sys.executable, "-P", "-m", "optimizer.engine_time", *arguments]
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
    files = dict(engine.files)
    fresh = dict(entry_files(files[PLAN_FILE].parent))
    return replace(engine, files=tuple(fresh.items())) if RUNTIME_CACHE_FILE in fresh else engine
