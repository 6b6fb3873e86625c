"""The engines that compete on this machine: ONNX Runtime always, TensorRT and TensorRT-RTX with a GPU."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from itertools import product
from typing import TYPE_CHECKING, Literal, TypeAlias

from model_repo.runtime.tritune_gpu.opening import RUNTIME_CACHE_FILE
from model_repo.spec import Engine
from optimizer.alone import Alone
from optimizer.engine_cache import PLAN_FILE, entry_files
from optimizer.engine_run import EngineRunner
from optimizer.engines import EngineFailed, Target, engine_from_variant
from optimizer.onnx_run import RunFailed
from optimizer.tensorrt_library import installed_tensorrt
from search import events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from optimizer.engine_cache import EngineCache
    from optimizer.engines import BuiltEngine
    from optimizer.hardware import Gpu, Hardware
    from optimizer.onnx_model import Model
    from optimizer.precisions import Precision
    from search.accuracy_record import AccuracyRecord
    from search.events import OnEvent

Device = Literal["cpu", "gpu"]
Judge: TypeAlias = "Callable[[EngineRunner, Precision], AccuracyRecord]"
"""Compares what an engine of a precision gives with fp32."""

CORES_A_CHECK = 4
MOST_CHECKS_AT_ONCE = 4
"""A check of an engine is mostly TensorRT-RTX compiling kernels on a core or two, and the GPU waiting for it."""


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
    if not machine.gpus:
        return tuple(engines)
    gpu = machine.gpus[0]
    alone = Alone(gpu=gpu, cache=cache, max_batch_size=max_batch_size, may_run=may_build)
    checks_at_once = min(MOST_CHECKS_AT_ONCE, max(1, machine.logical_cores // CORES_A_CHECK))
    if device == "gpu":
        on_event(events.PhaseStarted(name="prepare", detail="what ONNX Runtime does without a server"))
        with ThreadPoolExecutor(max_workers=checks_at_once) as pool:
            timed = list(pool.map(partial(_timed, alone, on_event), engines, (model for _, model in variants)))
        # The baseline competes whatever was seen of it.
        engines = [timed[0] or engines[0], *(engine for engine in timed[1:] if engine is not None)]
    tensorrt = _TensorRtEngines(
        gpu=gpu,
        alone=alone,
        checks_at_once=checks_at_once,
        cache=cache,
        max_batch_size=max_batch_size,
        limit_ms=limit_ms,
        judge=judge if may_build else None,
        may_build=may_build,
        on_event=on_event,
    )
    return (*engines, *tensorrt.of(variants))


def _timed(alone: Alone, on_event: OnEvent, engine: Engine, model: Model) -> Engine | None:
    """The engine of ONNX Runtime with what it does alone; None where it does not run at any batch size."""
    label = f"onnxruntime {engine.precision}"
    try:
        alone_ms = alone.of_model(engine, model, library_version=version("onnxruntime-gpu"))
    except EngineFailed as failure:
        on_event(events.Note(text=f"no {label}: {str(failure).splitlines()[0]}", warning=True))
        return None
    if alone_ms:
        on_event(events.Note(text=f"{label}: {alone_ms[0][1]:.2f} ms alone at batch 1"))
    return replace(engine, alone_ms=alone_ms)


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
class _Candidate:
    """A built engine that has yet to show that it runs, fast enough and right."""

    label: str
    precision: Precision
    model: Model
    built: BuiltEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class _TensorRtEngines:
    """Builds, times and checks the engines for one GPU, and tells why it leaves some out."""

    gpu: Gpu
    alone: Alone
    checks_at_once: int
    cache: EngineCache
    max_batch_size: int
    limit_ms: float
    may_build: bool
    judge: Judge | None
    on_event: OnEvent

    def of(self, variants: Sequence[tuple[Precision, Model]]) -> Iterator[Engine]:
        """One for each library and variant, where it works out. They are built in turn, and checked together."""
        if self.gpu.compute_capability is None:
            self._note(f"{self.gpu.name} does not tell its compute capability: no TensorRT", warning=True)
            return
        target = Target(compute_capability=self.gpu.compute_capability, name=self.gpu.name)
        candidates = list(self._candidates(variants, target))
        if not candidates:
            return
        names = ", ".join(candidate.label for candidate in candidates)
        self.on_event(events.PhaseStarted(name="prepare", detail=f"the checks of {names}"))
        with ThreadPoolExecutor(max_workers=self.checks_at_once) as pool:
            checks = [pool.submit(self._checked, candidate) for candidate in candidates]
            for candidate, check in zip(candidates, checks, strict=True):
                try:
                    engine = check.result()
                except EngineFailed as failure:
                    self._leave_out(candidate.label, failure)
                    continue
                built = candidate.built
                how = "from the cache" if built.source == "cache" else f"built in {built.metadata.build_s:.1f} s"
                alone = f", {engine.alone_ms[0][1]:.2f} ms alone at batch 1" if engine.alone_ms else ""
                self._note(f"{candidate.label} engine {how}{alone}")
                yield engine

    def _candidates(self, variants: Sequence[tuple[Precision, Model]], target: Target) -> Iterator[_Candidate]:
        for library, (precision, model) in product(installed_tensorrt(), variants):
            label = f"{library.backend} {precision}"
            self.on_event(events.PhaseStarted(name="prepare", detail=f"{label} engine"))
            try:
                built = engine_from_variant(
                    model,
                    precision,
                    library=library,
                    target=target,
                    cache=self.cache,
                    max_batch_size=self.max_batch_size if model.batched else 0,
                    may_build=self.may_build,
                )
            except EngineFailed as failure:
                self._leave_out(label, failure)
                continue
            yield _Candidate(label=label, precision=precision, model=model, built=built)

    def _checked(self, candidate: _Candidate) -> Engine:
        """The engine with what it takes alone. Raises EngineFailed. Runs beside other checks: it tells nothing."""
        alone_ms = self.alone.of_plan(candidate.built.engine, batched=candidate.model.batched)
        if alone_ms and not alone_ms[0][1] <= self.limit_ms:
            raise EngineFailed(
                f"alone it takes {alone_ms[0][1]:.1f} ms, over the limit", "Other engines are tried."
            )
        if self.judge is not None:
            self._check_accuracy(candidate.built, candidate.model, candidate.precision)
        return replace(_with_kernels(candidate.built.engine), alone_ms=alone_ms)

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

    def _leave_out(self, label: str, failure: EngineFailed) -> None:
        self._note(f"no {label} engine: {str(failure).splitlines()[0]}", warning=True)

    def _note(self, text: str, *, warning: bool = False) -> None:
        self.on_event(events.Note(text=text, warning=warning))


def _with_kernels(engine: Engine) -> Engine:
    """The engine with the kernels that were compiled for it since it was built."""
    files = dict(engine.files)
    fresh = dict(entry_files(files[PLAN_FILE].parent))
    return replace(engine, files=tuple(fresh.items())) if RUNTIME_CACHE_FILE in fresh else engine
