"""The engines that compete on this machine: ONNX Runtime always, TensorRT and TensorRT-RTX with a GPU."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from itertools import product
from threading import BoundedSemaphore
from typing import Literal, TypeAlias

from model_repo.runtime.tritune_gpu.opening import RUNTIME_CACHE_FILE
from model_repo.spec import Engine
from optimizer.child import threads
from optimizer.engines.builder import EngineFailed, TensorRt, installed_tensorrt
from optimizer.engines.cache import PLAN_FILE, EngineCache, entry_files
from optimizer.engines.from_variant import FIRST_GPU_WITH, BuiltEngine, Target, engine_from_variant
from optimizer.engines.standalone import EngineRunner, StandaloneTimings, Times
from optimizer.errors import RunFailed
from optimizer.machine.hardware import Gpu, Hardware
from optimizer.model.onnx_model import Model
from optimizer.model.weights import number_format
from optimizer.precision.names import Precision
from search.records.accuracy import AccuracyRecord
from search.simulator.surrogate import RACE_SHARE, engine_alone_per_s
from search.trials import events
from search.trials.events import OnEvent, timed_step

Device = Literal["cpu", "gpu"]
Judge: TypeAlias = Callable[[EngineRunner, Precision], AccuracyRecord]
"""Compares the outputs of an engine of this precision with those of fp32."""

CORES_A_CHECK = 4
MAX_CHECKS_AT_ONCE = 4
"""One check of an engine runs per four cores, and at most four at once. During most of a check TensorRT-RTX
compiles kernels on one or two cores, and the GPU waits."""

COMPUTE_FP32_IN_TF32 = frozenset({"tensorrt_rtx"})
"""Libraries that use TF32 although the plan was built without it (TensorRT-RTX 1.4 on an H100: `tests/gpu`): their
engine in fp32 is the one in tf32."""

MAX_COMPILING = 16
"""Kernels are compiled by a process per core, and at most 16: each takes a few hundred MB of the GPU."""


def engines_for(
    variants: Sequence[tuple[Precision, Model]],
    machine: Hardware,
    *,
    cache: EngineCache,
    max_batch_size: int,
    limit_ms: float,
    build_limit_s: float = math.inf,
    may_build: bool = True,
    race: bool = True,
    judge: Judge | None = None,
    on_event: OnEvent = events.ignore,
) -> tuple[Engine, ...]:
    """Return the engines of these (precision, model) pairs, those of ONNX Runtime first.

    `may_build` False: nothing is built or run, and only cached TensorRT engines compete. A TensorRT engine is left
    out with a note if it cannot be built (TensorRT-RTX within `build_limit_s`), does not run, fails `judge`, or is
    too slow standalone: over the limit or, in a `race`, far behind the fastest. An ONNX Runtime engine is left out
    if it does not run on the GPU, except for the first, the baseline. The unchanged model, which is the variant
    fp32, is labelled with its own number format: fp16, say. Raises CacheWriteFailed.
    """
    given = _given_format(variants)
    if given != "fp32":
        variants = [(name, model) for name, model in variants if name == "fp32" or name not in (given, "tf32")]
    device = device_of(machine)
    engines = [onnxruntime_engine(model, precision, device=device) for precision, model in variants]
    if not machine.gpus:
        return _labelled(engines, given)
    gpu = machine.gpus[0]
    checks_at_once = min(MAX_CHECKS_AT_ONCE, max(1, machine.logical_cores // CORES_A_CHECK))
    alone = StandaloneTimings(
        gpu=gpu,
        cache=cache,
        max_batch_size=max_batch_size,
        may_run=may_build,
        compiling=BoundedSemaphore(max(1, min(MAX_COMPILING, machine.logical_cores))),
    )
    tensorrt = _TensorRtEngines(
        gpu=gpu,
        alone=alone,
        checks_at_once=checks_at_once,
        cache=cache,
        max_batch_size=max_batch_size,
        limit_ms=limit_ms,
        build_limit_s=build_limit_s,
        judge=judge if may_build else None,
        may_build=may_build,
        share_of_fastest=RACE_SHARE if race else 0.0,
        on_event=on_event,
    )
    with threads(checks_at_once) as pool:
        racing = tensorrt.racing(pool, variants)
        if device == "gpu":
            on_event(events.PhaseStarted(name="prepare", detail="ONNX Runtime without a server"))
            with timed_step(on_event, "times of ONNX Runtime without a server"), threads(checks_at_once) as timing:
                timed = list(
                    timing.map(partial(_timed, alone, on_event), engines, (model for _, model in variants))
                )
            # The baseline competes even if it could not be timed.
            engines = [timed[0] or engines[0], *(engine for engine in timed[1:] if engine is not None)]
        candidates = tensorrt.raced(racing)
    best_per_s = max(engine_alone_per_s(engine, limit_ms=limit_ms) for engine in engines)
    return _labelled([*engines, *tensorrt.usable(candidates, best_per_s)], given)


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
    """A built engine. `alone_ms` are its times in a race; empty if nothing may run."""

    label: str
    precision: Precision
    model: Model
    built: BuiltEngine
    alone_ms: Times = ()

    def per_s(self, limit_ms: float) -> float:
        """Return its standalone batch items per second; infinite if nothing may run."""
        if not self.alone_ms:
            return math.inf
        return engine_alone_per_s(replace(self.built.engine, alone_ms=self.alone_ms), limit_ms=limit_ms)


log = logging.getLogger("tritune.engines")

_Racing: TypeAlias = tuple[str, Future[_Candidate]]
"""The label of an engine, and the engine once it is built and timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _TensorRtEngines:
    """Builds, times and checks the engines for one GPU, and reports why it leaves some out."""

    gpu: Gpu
    alone: StandaloneTimings
    checks_at_once: int
    cache: EngineCache
    max_batch_size: int
    limit_ms: float
    build_limit_s: float
    may_build: bool
    share_of_fastest: float
    judge: Judge | None
    on_event: OnEvent

    def racing(self, pool: Executor, variants: Sequence[tuple[Precision, Model]]) -> list[_Racing]:
        """Start to take the engines from the cache or build them, one per library and variant, and race them."""
        if self.gpu.compute_capability is None:
            self._note(f"{self.gpu.name} does not report its compute capability: no TensorRT", warning=True)
            return []
        target = Target(compute_capability=self.gpu.compute_capability, name=self.gpu.name)
        same = frozenset[str]()
        if "tf32" in dict(variants) and float(target.compute_capability) >= FIRST_GPU_WITH["tf32"]:
            same = COMPUTE_FP32_IN_TF32
        return [
            (f"{library.backend} {precision}", pool.submit(self._raced, library, precision, model, target))
            for library, (precision, model) in product(installed_tensorrt(), variants)
            if precision != "fp32" or library.backend not in same
        ]

    def raced(self, racing: Sequence[_Racing]) -> list[_Candidate]:
        """Return the engines that were built and run, when all are finished. Raises CacheWriteFailed."""
        if not racing:
            return []
        self.on_event(
            events.PhaseStarted(name="prepare", detail=", ".join(f"{label} engine" for label, _ in racing))
        )
        candidates = []
        with timed_step(self.on_event, "engines from the cache or built") as step:
            for label, future in racing:
                try:
                    candidates.append(future.result())
                except EngineFailed as failure:
                    self._leave_out(label, failure)
            step.cached = all(candidate.built.source == "cache" for candidate in candidates)
        return candidates

    def _raced(self, library: TensorRt, precision: Precision, model: Model, target: Target) -> _Candidate:
        """Return an engine with the times of a race; it emits no events. Raises EngineFailed, CacheWriteFailed."""
        built = engine_from_variant(
            model,
            precision,
            library=library,
            target=target,
            cache=self.cache,
            max_batch_size=self.max_batch_size if model.batched else 0,
            may_build=self.may_build,
            limit_s=self.build_limit_s if library.backend == "tensorrt_rtx" else math.inf,
        )
        alone_ms = self.alone.of_plan(built.engine)
        if alone_ms and not alone_ms[0][1] <= self.limit_ms:
            what = f"standalone it takes {alone_ms[0][1]:.1f} ms, over the limit"
            raise EngineFailed(what, "Other engines are tried.")
        label = f"{library.backend} {precision}"
        return _Candidate(label=label, precision=precision, model=model, built=built, alone_ms=alone_ms)

    def usable(self, candidates: Sequence[_Candidate], best_per_s: float) -> list[Engine]:
        """Return the engines that are right and not much slower standalone than the best, in order.

        The fastest are proven, and slower ones only if the fastest turn out to be wrong.
        """
        if not candidates:
            return []
        names = ", ".join(candidate.label for candidate in candidates)
        self.on_event(events.PhaseStarted(name="prepare", detail=f"the checks of {names}"))
        with timed_step(self.on_event, "checks of the engines"):
            waiting = list(candidates)
            proven: dict[str, Engine] = {}
            while waiting:
                rates = {one.label: one.per_s(self.limit_ms) for one in waiting}
                known = [rate for rate in rates.values() if math.isfinite(rate)]
                least = self.share_of_fastest * max([best_per_s, *known])
                tried = [one for one in waiting if rates[one.label] >= least]
                if not tried:
                    break
                with threads(self.checks_at_once) as pool:
                    checks = [pool.submit(self._checked, candidate) for candidate in tried]
                    for candidate, check in zip(tried, checks, strict=True):
                        try:
                            proven[candidate.label] = engine = check.result()
                        except EngineFailed as failure:
                            self._leave_out(candidate.label, failure)
                            continue
                        self._note(_proven_text(candidate, engine))
                        best_per_s = max(best_per_s, engine_alone_per_s(engine, limit_ms=self.limit_ms))
                waiting = [one for one in waiting if one not in tried]
        for one in waiting:
            slower = f"{100 * one.per_s(self.limit_ms) / best_per_s:.0f} % of the fastest standalone"
            self._note(f"{one.label} engine is left out: {slower}")
        return [proven[one.label] for one in candidates if one.label in proven]

    def _checked(self, candidate: _Candidate) -> Engine:
        """Return the engine, ready to be served, with its standalone times. Raises EngineFailed."""
        began = time.monotonic()
        if self.judge is not None:
            self._check_accuracy(candidate.built, candidate.model, candidate.precision)
        log.info("%s: judged in %.1f s", candidate.label, time.monotonic() - began)
        return replace(_with_kernels(candidate.built.engine), alone_ms=candidate.alone_ms)

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


def _proven_text(candidate: _Candidate, engine: Engine) -> str:
    built = candidate.built
    how = "from the cache" if built.source == "cache" else f"built in {built.metadata.build_s:.1f} s"
    alone = f", {engine.alone_ms[0][1]:.2f} ms standalone at batch 1" if engine.alone_ms else ""
    return f"{candidate.label} engine {how}{alone}"


def _with_kernels(engine: Engine) -> Engine:
    """Return the engine with the kernels that were compiled for it since it was built."""
    files = dict(engine.files)
    fresh = dict(entry_files(files[PLAN_FILE].parent))
    return replace(engine, files=tuple(fresh.items())) if RUNTIME_CACHE_FILE in fresh else engine
