"""Measure engines standalone, in processes of their own, and keep the times for the next run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from model_repo.spec import Engine
from optimizer.cached import put_file
from optimizer.child import ChildFailed, ChildTimedOut, call_in_child
from optimizer.engines.builder import EngineFailed
from optimizer.engines.cache import PLAN_FILE, EngineCache
from optimizer.engines.timing_child import timed
from optimizer.machine.hardware import Gpu
from optimizer.model.onnx_model import Model

TIMES_FILE = "times.json"
"""The file next to a plan with its standalone times, and the GPU on which they were measured."""

TIMING_LIMIT_S = 120.0

Times = tuple[tuple[int, float], ...]
"""Batch sizes, ascending, each with the milliseconds of one execution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StandaloneTimings:
    """Measures on one GPU, or reuses times measured on a GPU of this name with the same driver.

    `may_run` False: nothing is run. The times are rough if other engines are measured at the same time.
    """

    gpu: Gpu
    cache: EngineCache
    max_batch_size: int
    may_run: bool

    def of_plan(self, engine: Engine, *, batched: bool) -> Times:
        """Return the times of a cached plan; empty if not known and nothing may run. Raises EngineFailed."""
        folder = dict(engine.files)[PLAN_FILE].parent
        return self._times(engine, folder / PLAN_FILE, folder / TIMES_FILE, batched=batched, graphs=(True,))

    def of_model(self, engine: Engine, model: Model, *, library_version: str) -> Times:
        """Return the times in ONNX Runtime, with CUDA graphs if these can be recorded. Raises EngineFailed."""
        kept = self.kept_file(engine, model, library_version=library_version)
        file = dict(engine.files)[engine.model_file]
        return self._times(engine, file, kept, batched=model.batched, graphs=(True, False))

    def kept_file(self, engine: Engine, model: Model, *, library_version: str) -> Path:
        """Return the path of the times of an engine that has no entry of its own in the cache."""
        known_by = f"{model.sha256} {engine.backend} {engine.precision} {library_version} {self.max_batch_size}"
        return self.cache.folder / "times" / f"{hashlib.sha256(known_by.encode()).hexdigest()[:32]}.json"

    def _times(self, engine: Engine, file: Path, kept: Path, *, batched: bool, graphs: tuple[bool, ...]) -> Times:
        times = self._known(kept)
        if times is None:
            if not self.may_run:
                return ()
            times = self._measured_one_way(engine, file, batched=batched, graphs=graphs)
            found = {"gpu": self.gpu.name, "driver": self.gpu.driver, "times": times}
            put_file(kept, json.dumps(found, indent=1).encode())
        return tuple(sorted((int(row["batch_size"]), row["batch_ms"]) for row in times))

    def _measured_one_way(
        self, engine: Engine, file: Path, *, batched: bool, graphs: tuple[bool, ...]
    ) -> list[dict[str, float]]:
        call = partial(
            timed,
            file,
            engine.backend,
            {spec.name: spec.concrete_shape or () for spec in engine.inputs},
            max_batch_size=self.max_batch_size if batched else 0,
            tf32=engine.precision == "tf32" and engine.backend == "onnxruntime",
        )

        def measured(recorded: bool) -> list[dict[str, float]]:
            return _measured(partial(call, graphs=recorded), self.gpu)

        *first, last = graphs
        for recorded in first:
            with suppress(EngineFailed):
                return measured(recorded)
        return measured(last)

    def _known(self, kept: Path) -> list[dict[str, float]] | None:
        """Return the kept times if they are of a GPU of this name and this driver, else None."""
        try:
            found = json.loads(kept.read_text())
        except (OSError, ValueError):
            return None
        same = (found.get("gpu"), found.get("driver")) == (self.gpu.name, self.gpu.driver)
        return found["times"] if same else None


def _measured(call: Callable[[], dict[str, Any]], gpu: Gpu) -> list[dict[str, float]]:
    try:
        times: list[dict[str, float]] = call_in_child(call, timeout_s=TIMING_LIMIT_S)["times"]
    except ChildFailed as error:
        last = (error.trace.strip().splitlines() or ["it printed nothing"])[-1]
        why = f" within {TIMING_LIMIT_S:g} s" if isinstance(error, ChildTimedOut) else f": {last}"
        raise EngineFailed(
            f"it does not run on {gpu.name}{why}", "ONNX Runtime can still serve the model."
        ) from error
    return times
