"""An engine on its own: what one execution takes, its slowest layers, and what holds them up."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.model_info import NUMPY_TYPES
from loadgen.scratch import scratch_folder
from optimizer.ceilings import measured_ceilings
from optimizer.layer_times import LayerTime, bound_of, shares
from optimizer.onnx_run import RunFailed, run_child, save_tensors
from optimizer.samples import synthetic_samples
from search.engine_profile import CeilingsRecord, EngineProfileRecord, LayerRecord
from search.space import engine_label

if TYPE_CHECKING:
    from collections.abc import Sequence

    from model_repo.spec import Engine
    from optimizer.onnx_model import Model
    from optimizer.onnx_run import Tensors
    from search.engine_profile import Bound

CHILD = (sys.executable, "-P", "-m", "optimizer.layer_run")
TIMEOUT_S = 90.0
SLOWEST = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """What is profiled: an engine for `batch_size` requests at a time, and how it is executed.

    `model` is what the engine was made of, `threads` 0 means one per core, and `graphs` with CUDA graphs, where it
    runs on a GPU.
    """

    engine: Engine
    model: Model
    batch_size: int
    threads: int
    graphs: bool
    seed: int = 0

    def feed(self) -> Tensors:
        """Random inputs in the engine's own types, as whole tensors."""
        samples = synthetic_samples(self.model, self.batch_size, seed=self.seed)
        types = {spec.name: NUMPY_TYPES[spec.datatype] for spec in self.engine.inputs}
        whole = samples.feeds(self.batch_size)[0]
        return {name: array.astype(types[name], copy=False) for name, array in whole.items()}


def profile_engine(execution: Execution) -> EngineProfileRecord:
    """Run it a few times here, in child processes of its own. Raises RunFailed where it does not run."""
    engine = execution.engine
    feed = execution.feed()
    file = dict(engine.files)[engine.model_file]
    whole = _run(_request(execution, file), feed)
    nodes = {} if engine.backend == "onnxruntime" else _nodes(execution)
    profiled = _run(_request(execution, file) | {"layers": True, "nodes": nodes}, feed)
    layers = tuple(LayerTime(**layer) for layer in profiled["layers"])
    with scratch_folder("ceilings") as folder:
        ceilings = measured_ceilings(
            lambda path, feed: _seconds(execution, path, feed),
            Path(folder),
            precision=engine.precision,
            device=engine.device,
        )
    return profile_record(execution, whole, layers, ceilings)


def profile_record(
    execution: Execution, whole: dict[str, float], layers: Sequence[LayerTime], ceilings: CeilingsRecord
) -> EngineProfileRecord:
    """The record of these measurements; `whole` has `execution_ms`, and on a GPU `other_graph_ms`."""
    total_ms = sum(layer.ms for layer in layers)
    bounds: list[Bound] = [
        bound_of(layer, flops_per_s=ceilings.flops_per_s, bytes_per_s=ceilings.bytes_per_s) for layer in layers
    ]
    ranked = sorted(zip(layers, bounds, strict=True), key=lambda pair: -pair[0].ms)
    return EngineProfileRecord(
        engine=engine_label(execution.engine),
        batch_size=execution.batch_size,
        execution_ms=whole["execution_ms"],
        other_graph_ms=whole.get("other_graph_ms"),
        layers=tuple(
            LayerRecord(
                name=layer.name,
                operator=layer.operator,
                mean_ms=layer.ms,
                share=layer.ms / total_ms if total_ms > 0 else 0.0,
                bound=bound,
            )
            for layer, bound in ranked[:SLOWEST]
        ),
        layer_count=len(layers),
        bound_shares=shares((bound, layer.ms) for layer, bound in zip(layers, bounds, strict=True)),
        operator_shares=shares((layer.operator, layer.ms) for layer in layers),
        ceilings=ceilings,
        profiler=execution.engine.backend,
    )


def _nodes(execution: Execution) -> dict[str, dict[str, Any]]:
    """What each node of the fp32 model has to do at batch 1, by its name, as ONNX Runtime's profile says."""
    alone = replace(execution, batch_size=1, threads=0)
    request = _request(alone, execution.model.path)
    request |= {"backend": "onnxruntime", "device": "cpu", "layers": True, "optimized": False}
    whole = synthetic_samples(execution.model, 1, seed=execution.seed).feeds(1)[0]
    return {layer["name"]: layer for layer in _run(request, whole)["layers"]}


def _seconds(execution: Execution, path: Path, feed: Tensors) -> float | None:
    """How long ONNX Runtime takes for another model, on the same device with the same threads."""
    try:
        answer = _run(_request(execution, path) | {"backend": "onnxruntime"}, feed)
    except RunFailed:
        return None
    return float(answer["execution_ms"]) / 1000


def _request(execution: Execution, file: Path) -> dict[str, Any]:
    return {
        "folder": str(file.parent.absolute()),
        "file": file.name,
        "backend": execution.engine.backend,
        "device": execution.engine.device,
        "batch_size": execution.batch_size,
        "threads": execution.threads,
        "graphs": execution.graphs,
        "layers": False,
        "optimized": True,
    }


def _run(request: dict[str, Any], feed: Tensors) -> dict[str, Any]:
    """The answer of `optimizer.layer_run`. Raises RunFailed."""
    with scratch_folder("layers") as folder:
        save_tensors(Path(folder, "feed.npz"), feed)
        Path(folder, "request.json").write_text(json.dumps(request))
        run_child([*CHILD, str(folder)], TIMEOUT_S)
        answer: dict[str, Any] = json.loads(Path(folder, "answer.json").read_text())
    if "reason" in answer:
        raise RunFailed("run", answer["reason"])
    return answer
