"""What engines do without a server: measured in processes of their own, and kept for the next run."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from optimizer.engine_cache import PLAN_FILE, EngineCache
from optimizer.engines import EngineFailed

if TYPE_CHECKING:
    from pathlib import Path

    from model_repo.spec import Engine
    from optimizer.hardware import Gpu
    from optimizer.onnx_model import Model

TIMES_FILE = "times.json"
"""Beside a plan: what it did on its own, and on which GPU."""

TIMING_LIMIT_S = 120.0

Times = tuple[tuple[int, float], ...]
"""Batch sizes, ascending, and the milliseconds of one execution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """Measures on one GPU, or takes what was measured on one of its name with the same driver.

    `may_run` False: nothing is run. Beside other engines that are measured at the same time, figures are rough.
    """

    gpu: Gpu
    cache: EngineCache
    max_batch_size: int
    may_run: bool

    def of_plan(self, engine: Engine, *, batched: bool) -> Times:
        """Of a plan in the cache; empty where nothing may be run. Raises EngineFailed where it does not run."""
        folder = dict(engine.files)[PLAN_FILE].parent
        return self._times(engine, folder / PLAN_FILE, folder / TIMES_FILE, batched=batched, graphs=(True,))

    def of_model(self, engine: Engine, model: Model, *, library_version: str) -> Times:
        """Of ONNX Runtime with CUDA graphs, or where these cannot be recorded without. Raises EngineFailed."""
        kept = self.kept_file(engine, model, library_version=library_version)
        file = dict(engine.files)[engine.model_file]
        return self._times(engine, file, kept, batched=model.batched, graphs=(True, False))

    def kept_file(self, engine: Engine, model: Model, *, library_version: str) -> Path:
        """Where the times of an engine without a place of its own in the cache are kept."""
        known_by = f"{model.sha256} {engine.backend} {engine.precision} {library_version} {self.max_batch_size}"
        return self.cache.folder / "times" / f"{hashlib.sha256(known_by.encode()).hexdigest()[:32]}.json"

    def _times(self, engine: Engine, file: Path, kept: Path, *, batched: bool, graphs: tuple[bool, ...]) -> Times:
        times = self._known(kept)
        if times is None:
            if not self.may_run:
                return ()
            times = self._measured_one_way(engine, file, batched=batched, graphs=graphs)
            found = {"gpu": self.gpu.name, "driver": self.gpu.driver, "times": times}
            EngineCache.put_beside(kept, json.dumps(found, indent=1).encode())
        return tuple(sorted((int(row["batch_size"]), row["batch_ms"]) for row in times))

    def _measured_one_way(
        self, engine: Engine, file: Path, *, batched: bool, graphs: tuple[bool, ...]
    ) -> list[dict[str, float]]:
        shapes = json.dumps({spec.name: spec.concrete_shape for spec in engine.inputs})
        largest = str(self.max_batch_size if batched else 0)
        options = ["tf32"] if engine.precision == "tf32" and engine.backend == "onnxruntime" else []

        def measured(recorded: bool) -> list[dict[str, float]]:
            words = [str(file.parent), file.name, engine.backend, largest, str(int(recorded)), shapes, *options]
            return _measured(words, self.gpu)

        *first, last = graphs
        for recorded in first:
            with suppress(EngineFailed):
                return measured(recorded)
        return measured(last)

    def _known(self, kept: Path) -> list[dict[str, float]] | None:
        """What was measured before on a GPU of this name, with this driver; None where nothing was."""
        try:
            found = json.loads(kept.read_text())
        except (OSError, ValueError):
            return None
        same = (found.get("gpu"), found.get("driver")) == (self.gpu.name, self.gpu.driver)
        return found["times"] if same else None


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
