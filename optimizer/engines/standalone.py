"""Run and measure engines standalone, in processes of their own, and keep the times for the next run."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any, TypeVar

from numpy.typing import NDArray

from model_repo.repository.config_pbtxt import graph_batch_sizes
from model_repo.spec import Engine
from optimizer.cached import get_file, put_file
from optimizer.child import ChildFailed, ChildRaised, ChildTimedOut, call_in_child, threads
from optimizer.engines.builder import EngineFailed
from optimizer.engines.cache import PLAN_FILE, EngineCache, EngineKey
from optimizer.engines.from_variant import BuiltEngine, engine_from_cache
from optimizer.engines.timing_child import (
    KERNELS_OF_A_SIZE,
    compile_kernels,
    keep_kernels,
    load_engine,
    merge_kernels,
    timed,
)
from optimizer.machine.hardware import Gpu
from optimizer.model.onnx_model import Model
from optimizer.model.ort_child import Tensors, run_feeds
from optimizer.model.samples import feeds_for

log = logging.getLogger("tritune.engines")

T = TypeVar("T")

TIMES_FILE = "times.json"
"""The file next to a plan with its standalone times, whether the kernels of all batch sizes are compiled, and the
GPU."""

TIMING_LIMIT_S = 120.0

MIDDLE_BATCH = 8
"""Batch 1, 8 and the largest are measured: enough to tell which engines are worth proving. Between them the time
is nearly a straight line."""

FULL_PRECISIONS = ("fp32", "tf32")
"""Engines in these rarely win a race: only the kernels for it are compiled at first. Those of others are compiled
all at once, while the engine is built."""

COMPILING_BYTES_A_MODEL_BYTE = 64
"""Kernels of as many batch sizes are compiled at once as there is memory for 64 times the model's files: each
process holds about four copies of them, up to four engines are built at once, and a quarter of the memory is
enough. For less than one, the engine is built first."""

Times = tuple[tuple[int, float], ...]
"""Batch sizes, ascending, each with the milliseconds of one execution."""


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
        return run_feeds(load, feeds_for(self.variant, feeds), limits=None)[0]


def _engine(file: Path, backend: str, *, batched: bool) -> Callable[[Tensors], Tensors]:
    from model_repo.runtime.tritune_gpu.driver import DriverCuda
    from model_repo.runtime.tritune_gpu.runner import Runner

    cuda = DriverCuda(0)
    stream = cuda.stream()
    engine = load_engine(file, backend, cuda, stream, graphs=False)
    keep_kernels(engine, file.parent)
    sizes = engine.batch_sizes
    runner = Runner(engine, cuda, stream, max_batch_size=int(batched), batch_sizes=sizes, input_path="pinned")
    # The runner overwrites its arrays in every run.
    return lambda feed: {name: array.copy() for name, array in runner.run([feed]).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class StandaloneTimings:
    """Measures on one GPU, or reuses times measured on a GPU of this name with the same driver.

    `may_run` False: nothing is run. Engines of one cache are measured one after the other, whoever measures.
    `compiling` bounds the processes that compile kernels at the same time, one for each batch size of an engine;
    `memory_bytes` is the memory of this machine.
    """

    gpu: Gpu
    cache: EngineCache
    max_batch_size: int
    may_run: bool
    memory_bytes: int
    compiling: BoundedSemaphore = field(default_factory=partial(BoundedSemaphore, 1))

    def of_plan(
        self, variant: Model, key: EngineKey, build: Callable[[], BuiltEngine]
    ) -> tuple[BuiltEngine, Times]:
        """Return the engine of this key, cached or as `build` returns it, and its times; none if nothing may run.

        Kernels are compiled while it builds. Raises EngineFailed and what `build` raises.
        """
        found = engine_from_cache(key, variant, self.cache)
        kept = found and self._found(dict(found.engine.files)[PLAN_FILE].with_name(TIMES_FILE))
        if kept is not None or not self.may_run:
            return found or build(), _sorted(kept["times"] if kept else [])
        began = time.monotonic()
        likely = key.precision not in FULL_PRECISIONS
        sizes = self._all_sizes if likely else self._race_sizes
        with threads(2 if self._room(variant) else 1) as pool:
            building = pool.submit(lambda: found or build())
            has_failed = lambda: building.done() and building.exception() is not None  # noqa: E731
            compiling = pool.submit(self._compiled, variant, key, sizes, stop=has_failed)
            building.exception()  # waits: an error that leaves this block would end the children of all threads
            compiling.exception()
        built, kernels = building.result(), compiling.result()
        file = dict(built.engine.files)[PLAN_FILE]
        _put_kernels(file, kernels)
        built_s = time.monotonic() - began
        known = self._measured(built.engine, file, graphs=(True,))
        self._keep(file.with_name(TIMES_FILE), known, complete=likely or not _compiles(variant, key))
        log.info(
            "%s %s: built and compiled in %.1f s, measured in %.1f s",
            *(key.backend, key.precision, built_s, time.monotonic() - began - built_s),
        )
        return built, _sorted(known)

    def complete(self, variant: Model, built: BuiltEngine) -> None:
        """Compile the kernels of the batch sizes that a race leaves out, if that was not done before.

        They are merged with the others where the engine is loaded next, by `EngineRunner` or by `merge`.
        """
        file = dict(built.engine.files)[PLAN_FILE]
        kept = file.with_name(TIMES_FILE)
        found = self._found(kept)
        if self.may_run and found is not None and not found.get("complete", True):
            sizes = [size for size in self._all_sizes if size not in self._race_sizes]
            _put_kernels(file, self._compiled(variant, built.metadata.key, sizes))
            self._keep(kept, found["times"], complete=True)

    def merge(self, engine: Engine) -> None:
        """Merge kernels that `complete` compiled, if nothing did; without them the server would compile again."""
        file = dict(engine.files)[PLAN_FILE]
        if any(file.parent.glob(KERNELS_OF_A_SIZE.format("*"))):
            with suppress(ChildFailed):
                call_in_child(partial(merge_kernels, file, engine.backend), timeout_s=TIMING_LIMIT_S)

    def of_model(self, engine: Engine, model: Model, *, library_version: str) -> Times:
        """Return the times in ONNX Runtime, with CUDA graphs if possible. Raises EngineFailed."""
        kept = self.kept_file(engine, model, library_version=library_version)
        found = self._found(kept)
        if found is not None or not self.may_run:
            return _sorted(found["times"] if found else [])
        known = self._measured(engine, dict(engine.files)[engine.model_file], graphs=(True, False))
        self._keep(kept, known)
        return _sorted(known)

    def kept_file(self, engine: Engine, model: Model, *, library_version: str) -> Path:
        """Return the path of the times of an engine that has no entry of its own in the cache."""
        known_by = f"{model.sha256} {engine.backend} {engine.precision} {library_version} {self.max_batch_size}"
        return self.cache.folder / "times" / f"{hashlib.sha256(known_by.encode()).hexdigest()[:32]}.json"

    def _room(self, variant: Model) -> int:
        """Return for how many batch sizes kernels can be compiled at once, by memory."""
        return self.memory_bytes // (COMPILING_BYTES_A_MODEL_BYTE * variant.size_bytes)

    def _compiled(
        self, variant: Model, key: EngineKey, sizes: Sequence[int], *, stop: Callable[[], bool] = lambda: False
    ) -> dict[int, bytes]:
        """Return the kernels of these batch sizes, or of those that began before `stop` was true.

        What fails here fails again, with its reason, where the engine is measured or judged.
        """
        if not _compiles(variant, key):
            return {}
        profiles = {next(iter(profile.values()))[-1][0]: profile for profile in key.profiles}

        def one(size: int) -> bytes | None:
            alone = key.model_copy(update={"profiles": (profiles[size],)})
            with self.compiling, suppress(ChildFailed, EngineFailed):
                if not stop():
                    return call_in_child(partial(compile_kernels, alone, variant.path), timeout_s=TIMING_LIMIT_S)
            return None

        with threads(max(1, min(len(sizes), self._room(variant)))) as pool:
            compiled = dict(zip(sizes, pool.map(one, sizes), strict=True))
        return {size: kernels for size, kernels in compiled.items() if kernels}

    def _measured(self, engine: Engine, file: Path, *, graphs: tuple[bool, ...]) -> list[dict[str, float]]:
        call: Callable[..., list[dict[str, float]]] = partial(
            timed,
            file,
            engine.backend,
            {spec.name: spec.concrete_shape or () for spec in engine.inputs},
            batch_sizes=self._race_sizes if engine.batched else (),
            tf32=engine.precision == "tf32" and engine.backend == "onnxruntime",
            shared=self.cache.folder,
        )
        *first, last = graphs
        for recorded in first:
            with suppress(EngineFailed):
                return _called(partial(call, graphs=recorded), self.gpu)
        return _called(partial(call, graphs=last), self.gpu)

    @property
    def _all_sizes(self) -> tuple[int, ...]:
        return graph_batch_sizes(self.max_batch_size)

    @property
    def _race_sizes(self) -> list[int]:
        return sorted({min(size, self.max_batch_size) for size in (1, MIDDLE_BATCH, self.max_batch_size)})

    def _keep(self, kept: Path, times: list[dict[str, float]], *, complete: bool = True) -> None:
        found = {"gpu": self.gpu.name, "driver": self.gpu.driver, "times": times, "complete": complete}
        put_file(kept, json.dumps(found, indent=1).encode())

    def _found(self, kept: Path) -> dict[str, Any] | None:
        """Return what is kept if it is of a GPU of this name and this driver, else None."""
        found: dict[str, Any] = json.loads(get_file(kept) or b"{}")
        same = (found.get("gpu"), found.get("driver")) == (self.gpu.name, self.gpu.driver)
        return found if same else None


def beaten_by(rivals: Iterable[tuple[str, Times]], other: Times) -> str:
    """Return which rival, if any, has times at each batch size of the others, and shorter ones; in words."""
    for name, times in rivals:
        own_ms = dict(times)
        if other and all(own_ms.get(size, math.inf) < other_ms for size, other_ms in other):
            return f", and {name} is faster at each batch size"
    return ""


def _compiles(variant: Model, key: EngineKey) -> bool:
    """True if the engine's library compiles kernels when it first meets a batch size."""
    return key.backend == "tensorrt_rtx" and variant.batched


def _put_kernels(plan: Path, kernels: Mapping[int, bytes]) -> None:
    """Write the kernels of each batch size next to the plan, from where `timed` takes them in."""
    for size, compiled in kernels.items():
        put_file(plan.with_name(KERNELS_OF_A_SIZE.format(size)), compiled)


def _sorted(times: list[dict[str, float]]) -> Times:
    return tuple(sorted((int(row["batch_size"]), row["batch_ms"]) for row in times))


def _called(call: Callable[[], T], gpu: Gpu) -> T:
    """Return the result of a call in a child. Raises EngineFailed."""
    try:
        return call_in_child(call, timeout_s=TIMING_LIMIT_S)
    except ChildFailed as error:
        last = (error.trace.strip().splitlines() or ["it printed nothing"])[-1]
        what = " ".join(error.reason.split()) if isinstance(error, ChildRaised) else last
        why = f" within {TIMING_LIMIT_S:g} s" if isinstance(error, ChildTimedOut) else f": {what}"
        raise EngineFailed(
            f"it does not run on {gpu.name}{why}", "ONNX Runtime can still serve the model."
        ) from error
