"""The engines that compete on this machine: ONNX Runtime always, TensorRT and TensorRT-RTX with a GPU."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor, Future
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from importlib.metadata import version
from itertools import product
from threading import BoundedSemaphore
from typing import Any, Self, TypeAlias

from model_repo.runtime.tritune_gpu.opening import RUNTIME_CACHE_FILE
from model_repo.spec import Engine
from optimizer.child import threads
from optimizer.engines.builder import EngineFailed, TensorRt, installed_tensorrt
from optimizer.engines.cache import PLAN_FILE, EngineCache, entry_files
from optimizer.engines.from_variant import FIRST_GPU_WITH, BuiltEngine, engine_key, engine_of
from optimizer.engines.standalone import EngineRunner, StandaloneTimings, Times, beaten_by
from optimizer.errors import RunFailed
from optimizer.machine.hardware import Hardware
from optimizer.model.onnx_model import Model
from optimizer.precision.names import Device, Precision
from search.records.recommendation import AccuracyRecord
from search.simulator.surrogate import RACE_SHARE, engine_alone_per_s
from search.trials import events
from search.trials.events import OnEvent, timed_step

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


def _checks_at_once(machine: Hardware) -> int:
    return min(MAX_CHECKS_AT_ONCE, max(1, machine.logical_cores // CORES_A_CHECK))


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


@dataclass(slots=True)
class EngineRace:
    """Builds, times and checks engines of these `precisions` on this machine; reports why it leaves some out.

    If its `with` block is left early, what is under way ends. `given`: the number format of the unchanged model,
    which is the variant fp32, and is labelled with that format: fp16, say. `may_build` False: nothing is built or
    run, and only cached TensorRT engines compete. TensorRT-RTX may build an engine for `build_limit_s`. `race`
    False: slow engines stay. Labels `excluded`: not built.
    """

    machine: Hardware
    _: KW_ONLY
    precisions: Collection[str]
    given: str = "fp32"
    cache: EngineCache
    max_batch_size: int
    limit_ms: float
    build_limit_s: float = math.inf
    may_build: bool = True
    race: bool = True
    excluded: Collection[str] = ()
    on_event: OnEvent = events.ignore
    alone: StandaloneTimings | None = field(default=None, init=False)
    begun: set[Precision] = field(default_factory=set, init=False)
    timed: dict[Precision, Future[Times]] = field(default_factory=dict, init=False)
    raced: dict[str, Future[_Candidate]] = field(default_factory=dict, init=False)
    _pools: ExitStack = field(default_factory=ExitStack, init=False)
    _building: Executor = field(init=False)
    _timing: Executor = field(init=False)

    def __enter__(self) -> Self:
        if self.machine.gpus:
            self.alone = StandaloneTimings(
                gpu=self.machine.gpus[0],
                cache=self.cache,
                max_batch_size=self.max_batch_size,
                may_run=self.may_build,
                memory_bytes=self.machine.memory_bytes,
                compiling=BoundedSemaphore(max(1, min(MAX_COMPILING, self.machine.logical_cores))),
            )
        at_once = _checks_at_once(self.machine)
        self._building, self._timing = (self._pools.enter_context(threads(at_once)) for _ in range(2))
        return self

    def __exit__(self, *error: Any) -> None:
        self._pools.__exit__(*error)

    def begin(self, precision: Precision, model: Model) -> None:
        """Start to build and time the engines of a variant, in threads; nothing if they were started before."""
        if self.alone is None or precision in self.begun or not self._competes(precision):
            return
        self.begun.add(precision)
        for library in installed_tensorrt() if self.machine.gpus[0].compute_capability else ():
            as_tf32 = precision == "fp32" and library.backend in COMPUTE_FP32_IN_TF32 and self._has_tf32()
            if as_tf32 or f"{library.backend}-{self._shown(precision)}" in self.excluded:
                continue
            built = self._building.submit(self._raced, library, precision, model)
            self.raced[f"{library.backend} {precision}"] = built
        engine = onnxruntime_engine(model, precision, device=device_of(self.machine))
        of_model = partial(self.alone.of_model, engine, model, library_version=version("onnxruntime-gpu"))
        if engine.device == "gpu":
            self.timed[precision] = self._timing.submit(of_model)

    def engines(
        self, variants: Sequence[tuple[Precision, Model]], judge: Judge | None = None
    ) -> tuple[Engine, ...]:
        """Return the engines of these (precision, model) pairs, those of ONNX Runtime first.

        A TensorRT engine is left out with a note if it cannot be built, does not run, fails `judge`, or is too
        slow standalone: over the limit or, in a race, far behind the fastest. An ONNX Runtime engine is left out
        if it does not run on the GPU, except for the first, the baseline. Raises CacheWriteFailed.
        """
        variants = [(precision, model) for precision, model in variants if self._competes(precision)]
        for precision, model in variants:
            self.begin(precision, model)
        engines = self._of_onnxruntime(variants)
        if self.alone is not None:
            wanted = [one for one in engines if f"{one.backend}-{self._shown(one.precision)}" not in self.excluded]
            best_per_s = max((engine_alone_per_s(one, limit_ms=self.limit_ms) for one in wanted), default=0.0)
            engines += self._usable(self._candidates(variants), best_per_s, judge if self.alone.may_run else None)
        return tuple(replace(each, precision=self._shown(each.precision)) for each in engines)

    def _shown(self, precision: str) -> str:
        return self.given if precision == "fp32" else precision

    def _competes(self, precision: str) -> bool:
        return self.given == "fp32" or precision not in {self.given, "tf32"}

    def _has_tf32(self) -> bool:
        able = float(self.machine.gpus[0].compute_capability or 0) >= FIRST_GPU_WITH["tf32"]
        return able and "tf32" in self.precisions and self._competes("tf32")

    def _of_onnxruntime(self, variants: Sequence[tuple[Precision, Model]]) -> list[Engine]:
        device = device_of(self.machine)
        engines = [onnxruntime_engine(model, precision, device=device) for precision, model in variants]
        if not self.timed:
            return engines
        self.on_event(events.PhaseStarted(name="prepare", detail="ONNX Runtime without a server"))
        usable = []
        with timed_step(self.on_event, "times of ONNX Runtime without a server"):
            for (precision, _), engine in zip(variants, engines, strict=True):
                label = f"onnxruntime {precision}"
                try:
                    alone_ms = self.timed[precision].result()
                except EngineFailed as failure:
                    self._leave_out(label, failure)
                    continue
                if alone_ms:
                    self._note(f"{label}: {alone_ms[0][1]:.2f} ms standalone at batch 1")
                usable.append(replace(engine, alone_ms=alone_ms))
        # The baseline competes even if it could not be timed.
        return usable if usable[:1] and usable[0].precision == engines[0].precision else [engines[0], *usable]

    def _candidates(self, variants: Sequence[tuple[Precision, Model]]) -> list[_Candidate]:
        """Return the engines that were built and run, when all are finished. Raises CacheWriteFailed."""
        gpu = self.machine.gpus[0]
        if gpu.compute_capability is None:
            self._note(f"{gpu.name} does not report its compute capability: no TensorRT", warning=True)
        labels = (f"{one.backend} {precision}" for one, (precision, _) in product(installed_tensorrt(), variants))
        racing = {label: self.raced[label] for label in labels if label in self.raced}
        if not racing:
            return []
        self.on_event(events.PhaseStarted(name="prepare", detail=", ".join(f"{label} engine" for label in racing)))
        candidates = []
        with timed_step(self.on_event, "engines from the cache or built") as step:
            for label, future in racing.items():
                try:
                    candidates.append(future.result())
                except EngineFailed as failure:
                    self._leave_out(label, failure)
            step.cached = all(candidate.built.source == "cache" for candidate in candidates)
        return candidates

    def _raced(self, library: TensorRt, precision: Precision, model: Model) -> _Candidate:
        """Return an engine with the times of a race; it emits no events. Raises EngineFailed, CacheWriteFailed."""
        gpu, alone = self.machine.gpus[0], self.alone
        assert alone is not None
        largest = alone.max_batch_size if model.batched else 0
        key = engine_key(model, precision, library=library, gpu=gpu, max_batch_size=largest)
        limit_s = self.build_limit_s if library.backend == "tensorrt_rtx" else math.inf
        build = partial(engine_of, key, model, cache=alone.cache, may_build=alone.may_run, limit_s=limit_s)
        built, alone_ms = alone.of_plan(model, key, build)
        if alone_ms and not alone_ms[0][1] <= self.limit_ms:
            what = f"standalone it takes {alone_ms[0][1]:.1f} ms, over the limit"
            raise EngineFailed(what, "Other engines are tried.")
        label = f"{library.backend} {precision}"
        return _Candidate(label=label, precision=precision, model=model, built=built, alone_ms=alone_ms)

    def _usable(self, candidates: Sequence[_Candidate], best_per_s: float, judge: Judge | None) -> list[Engine]:
        """Return the engines that are right and not much slower standalone than the best, in order.

        The fastest are proven, and slower ones, or beaten at each batch size, only if the fastest are wrong.
        """
        if not candidates:
            return []
        names = ", ".join(one.label for one in candidates)
        self.on_event(events.PhaseStarted(name="prepare", detail=f"the checks of {names}"))
        with timed_step(self.on_event, "checks of the engines"):
            waiting, racing = list(candidates), candidates if self.race else ()
            proven: dict[str, Engine] = {}
            while waiting:
                rates = {one.label: one.per_s(self.limit_ms) for one in waiting}
                least = (
                    RACE_SHARE * max([best_per_s, *filter(math.isfinite, rates.values())]) if self.race else 0.0
                )
                rivals = [(one.label, one.alone_ms) for one in racing if one in waiting or one.label in proven]
                quick = [one for one in waiting if rates[one.label] >= least]
                tried = [one for one in quick if not beaten_by(rivals, one.alone_ms)]
                if not tried:
                    break
                with threads(_checks_at_once(self.machine)) as pool:
                    checks = [pool.submit(self._checked, candidate, judge) for candidate in tried]
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
            self._note(f"{one.label} engine is left out: {slower}{beaten_by(rivals, one.alone_ms)}")
        return [proven[one.label] for one in candidates if one.label in proven]

    def _checked(self, candidate: _Candidate, judge: Judge | None) -> Engine:
        """Return the engine, ready to be served, with its standalone times. Raises EngineFailed."""
        assert self.alone is not None
        began = time.monotonic()
        self.alone.complete(candidate.model, candidate.built)
        compiled_s = time.monotonic() - began
        if judge is not None:
            self._check_accuracy(candidate, judge)
        self.alone.merge(candidate.built.engine)
        judged_s = time.monotonic() - began - compiled_s
        log.info("%s: other sizes compiled in %.1f s, judged in %.1f s", candidate.label, compiled_s, judged_s)
        engine = candidate.built.engine
        files = entry_files(dict(engine.files)[PLAN_FILE].parent)
        if RUNTIME_CACHE_FILE in dict(files):  # kernels that were compiled since it was built
            engine = replace(engine, files=files)
        return replace(engine, alone_ms=candidate.alone_ms)

    def _check_accuracy(self, candidate: _Candidate, judge: Judge) -> None:
        """Raise EngineFailed if the engine's results are not close enough to fp32, or if there are none."""
        built, model = candidate.built, candidate.model
        runner = EngineRunner(engine=built.engine, variant=model, library_version=built.metadata.library_version)
        try:
            record = judge(runner, candidate.precision)
        except RunFailed as error:
            what = f"it does not run on {self.machine.gpus[0].name}: {' '.join(error.reason.split())}"
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
