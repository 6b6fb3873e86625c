"""The engines that compete on this machine: ONNX Runtime always, TensorRT and TensorRT-RTX with a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from model_repo.runtime.tritune_gpu.opening import RUNTIME_CACHE_FILE
from model_repo.spec import Engine
from optimizer.child import threads
from optimizer.engines.builder import EngineFailed, installed_tensorrt
from optimizer.engines.cache import PLAN_FILE, EngineCache, entry_files
from optimizer.engines.from_variant import BuiltEngine, Target, engine_from_variant
from optimizer.engines.standalone import StandaloneTimings
from optimizer.errors import RunFailed
from optimizer.machine.hardware import Gpu, Hardware
from optimizer.model.onnx_model import Model
from optimizer.model.ort_child import Tensors, run_feeds
from optimizer.model.samples import feeds_for
from optimizer.model.weights import number_format
from optimizer.precision.names import Precision
from search.records.accuracy import AccuracyRecord
from search.trials import events
from search.trials.events import OnEvent, timed_step

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRunner:
    """An engine that `optimizer.accuracy.check` can run. `variant` is the model from which it was built."""

    engine: Engine
    variant: Model
    library_version: str

    @property
    def name(self) -> str:
        """Return backend and version, such as `tensorrt_rtx-1.4.0.76`."""
        return f"{self.engine.backend}-{self.library_version}"

    def run(self, feeds: Sequence[Mapping[str, NDArray[Any]]]) -> list[Tensors]:
        """Return all outputs for each of `feeds`, in order. Raises RunFailed."""
        file = dict(self.engine.files)[self.engine.model_file]
        load = partial(_engine, file.absolute(), self.engine.backend, batched=self.engine.batched)
        return run_feeds(load, feeds_for(self.variant, feeds), limits=None)


def _engine(file: Path, backend: str, *, batched: bool) -> Callable[[Tensors], Tensors]:
    from model_repo.runtime.tritune_gpu.driver import DriverCuda
    from model_repo.runtime.tritune_gpu.runner import Runner
    from optimizer.engines.timing_child import load_engine

    cuda = DriverCuda(0)
    stream = cuda.stream()
    engine = load_engine(file.parent, file.name, backend, cuda, stream, graphs=False)
    runner = Runner(engine, cuda, stream, max_batch_size=int(batched), input_path="pinned")
    # The runner overwrites its arrays in every run.
    return lambda feed: {name: array.copy() for name, array in runner.run([feed]).items()}


Device = Literal["cpu", "gpu"]
Judge: TypeAlias = Callable[[EngineRunner, Precision], AccuracyRecord]
"""Compares the outputs of an engine of this precision with those of fp32."""

CORES_A_CHECK = 4
MOST_CHECKS_AT_ONCE = 4
"""One check of an engine runs per four cores, and at most four at once. During most of a check TensorRT-RTX
compiles kernels on one or two cores, and the GPU waits."""


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
    """Return the engines of these (precision, model) pairs, those of ONNX Runtime first.

    `may_build` False: nothing is built or run, and only cached TensorRT engines compete. A TensorRT engine is left
    out with a note if it cannot be built, does not run, fails `judge`, or takes longer than the limit standalone.
    An ONNX Runtime engine is left out if it does not run on the GPU, except for the first, the baseline. The
    unchanged model, which is the variant fp32, is labelled with its own number format: fp16, say. Raises
    CacheWriteFailed.
    """
    given = _given_format(variants)
    if given != "fp32":
        variants = [(name, model) for name, model in variants if name == "fp32" or name not in (given, "tf32")]
    device = device_of(machine)
    engines = [onnxruntime_engine(model, precision, device=device) for precision, model in variants]
    if not machine.gpus:
        return _labelled(engines, given)
    gpu = machine.gpus[0]
    alone = StandaloneTimings(gpu=gpu, cache=cache, max_batch_size=max_batch_size, may_run=may_build)
    checks_at_once = min(MOST_CHECKS_AT_ONCE, max(1, machine.logical_cores // CORES_A_CHECK))
    if device == "gpu":
        on_event(events.PhaseStarted(name="prepare", detail="ONNX Runtime without a server"))
        with timed_step(on_event, "times of ONNX Runtime without a server"), threads(checks_at_once) as pool:
            timed = list(pool.map(partial(_timed, alone, on_event), engines, (model for _, model in variants)))
        # The baseline competes even if it could not be timed.
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
    return _labelled([*engines, *tensorrt.of(variants)], given)


def _given_format(variants: Sequence[tuple[Precision, Model]]) -> str:
    """Return the number format of the unchanged model; fp32 if it is not among the variants."""
    unchanged = next((model for precision, model in variants if precision == "fp32"), None)
    return "fp32" if unchanged is None else number_format(unchanged.graph.proto)


def _labelled(engines: Iterable[Engine], given: str) -> tuple[Engine, ...]:
    """Return the engines; those of the unchanged model have its own number format as their precision."""
    return tuple(replace(each, precision=given) if each.precision == "fp32" else each for each in engines)


def _timed(alone: StandaloneTimings, on_event: OnEvent, engine: Engine, model: Model) -> Engine | None:
    """Return the ONNX Runtime engine with its standalone times; None if it runs at no batch size."""
    label = f"onnxruntime {engine.precision}"
    try:
        alone_ms = alone.of_model(engine, model, library_version=version("onnxruntime-gpu"))
    except EngineFailed as failure:
        on_event(events.Note(text=f"no {label}: {str(failure).splitlines()[0]}", warning=True))
        return None
    if alone_ms:
        on_event(events.Note(text=f"{label}: {alone_ms[0][1]:.2f} ms standalone at batch 1"))
    return replace(engine, alone_ms=alone_ms)


def device_of(machine: Hardware) -> Device:
    """Return the device on which ONNX Runtime executes here."""
    return "gpu" if machine.gpus and "CUDAExecutionProvider" in machine.providers else "cpu"


def onnxruntime_engine(model: Model, precision: str = "fp32", *, device: Device = "cpu") -> Engine:
    """Return an engine that executes the unchanged model by ONNX Runtime."""
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
    """A built engine whose speed and accuracy have not been checked yet."""

    label: str
    precision: Precision
    model: Model
    built: BuiltEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class _TensorRtEngines:
    """Builds, times and checks the engines for one GPU, and reports why it leaves some out."""

    gpu: Gpu
    alone: StandaloneTimings
    checks_at_once: int
    cache: EngineCache
    max_batch_size: int
    limit_ms: float
    may_build: bool
    judge: Judge | None
    on_event: OnEvent

    def of(self, variants: Sequence[tuple[Precision, Model]]) -> Iterator[Engine]:
        """Yield the usable engines, at most one per library and variant; built in turn, checked in parallel."""
        if self.gpu.compute_capability is None:
            self._note(f"{self.gpu.name} does not report its compute capability: no TensorRT", warning=True)
            return
        target = Target(compute_capability=self.gpu.compute_capability, name=self.gpu.name)
        with timed_step(self.on_event, "engines from the cache or built") as step:
            candidates = list(self._candidates(variants, target))
            step.cached = all(candidate.built.source == "cache" for candidate in candidates)
        if not candidates:
            return
        names = ", ".join(candidate.label for candidate in candidates)
        self.on_event(events.PhaseStarted(name="prepare", detail=f"the checks of {names}"))
        with timed_step(self.on_event, "checks of the engines"), threads(self.checks_at_once) as pool:
            checks = [pool.submit(self._checked, candidate) for candidate in candidates]
            for candidate, check in zip(candidates, checks, strict=True):
                try:
                    engine = check.result()
                except EngineFailed as failure:
                    self._leave_out(candidate.label, failure)
                    continue
                built = candidate.built
                how = "from the cache" if built.source == "cache" else f"built in {built.metadata.build_s:.1f} s"
                alone = f", {engine.alone_ms[0][1]:.2f} ms standalone at batch 1" if engine.alone_ms else ""
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
        """Return the engine with its standalone times. Raises EngineFailed.

        It emits no events, because checks run in parallel.
        """
        alone_ms = self.alone.of_plan(candidate.built.engine, batched=candidate.model.batched)
        if alone_ms and not alone_ms[0][1] <= self.limit_ms:
            raise EngineFailed(
                f"standalone it takes {alone_ms[0][1]:.1f} ms, over the limit", "Other engines are tried."
            )
        if self.judge is not None:
            self._check_accuracy(candidate.built, candidate.model, candidate.precision)
        return replace(_with_kernels(candidate.built.engine), alone_ms=alone_ms)

    def _check_accuracy(self, built: BuiltEngine, model: Model, precision: Precision) -> None:
        """Raise EngineFailed if the engine's results are not close enough to fp32, or if there are none."""
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
    """Return the engine with the kernels that were compiled for it since it was built."""
    files = dict(engine.files)
    fresh = dict(entry_files(files[PLAN_FILE].parent))
    return replace(engine, files=tuple(fresh.items())) if RUNTIME_CACHE_FILE in fresh else engine
