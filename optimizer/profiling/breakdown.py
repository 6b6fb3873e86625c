"""Explain the request time of the recommendation and of the baseline, once the search is over.

Their engines are profiled standalone. The ceilings of layers are measured and not taken from a data sheet: the
arithmetic of a large matrix product and the bytes of a large copy, run by ONNX Runtime with the engine's number of
threads.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.processes import scratch_folder
from loadgen.traffic.model_info import NUMPY_TYPES
from model_repo.repository.config_pbtxt import executed_batch_sizes
from model_repo.spec import Engine
from optimizer.errors import RunFailed
from optimizer.model.checks import plain, shortened
from optimizer.model.onnx_model import Model
from optimizer.model.ort_child import Tensors, run_in_child
from optimizer.model.samples import given_samples, synthetic_samples
from optimizer.profiling.layers import LayerTime, bound_of, shares
from optimizer.profiling.profile_child import profiled
from optimizer.profiling.text import time_summary
from search.records.recommendation import Bound, CeilingsRecord, EngineProfileRecord, LayerRecord, TimeUseRecord
from search.space import engine_label
from search.trials import events
from search.trials.events import OnEvent
from search.trials.trial import Trial

PRODUCT_SIZE = {"cpu": 768, "gpu": 8192}
COPIED_ELEMENTS = {"cpu": 2**24, "gpu": 2**28}
OPSET, IR_VERSION = 17, 8


def _measured_ceilings(execution: Execution) -> CeilingsRecord:
    """Return the ceilings for an engine of this precision on this device."""
    precision, device = execution.engine.precision, execution.engine.device
    size, elements = PRODUCT_SIZE[device], COPIED_ELEMENTS[device]
    with scratch_folder("ceilings") as folder:
        product_s = _seconds(execution, *_product(folder, size, precision, device))
        copy_s = _seconds(execution, *_copy(folder, elements))
    return CeilingsRecord(
        flops_per_s=2.0 * size**3 / product_s if product_s else None,
        bytes_per_s=2.0 * 4 * elements / copy_s if copy_s else None,
    )


def _product(folder: Path, size: int, precision: str, device: str) -> tuple[Path, Tensors]:
    """Write a square matrix product in the types that an engine of this precision multiplies on this device."""
    shape = f"[{size}, {size}]"
    if precision == "int8":
        left, right = np.ones((size, size), np.uint8), np.ones((size, size), np.int8)
        text = f"(uint8{shape} a, int8{shape} b) => (int32{shape} y) {{ y = MatMulInteger(a, b) }}"
    else:
        half = device == "gpu" and precision in {"fp16", "bf16", "fp8"}  # equally fast on a GPU; CPUs use fp32
        kind = "float16" if half else "float"
        left = right = np.ones((size, size), np.float16 if half else np.float32)
        text = f"({kind}{shape} a, {kind}{shape} b) => ({kind}{shape} y) {{ y = MatMul(a, b) }}"
    return _written(folder / "product.onnx", text), {"a": left, "b": right}


def _copy(folder: Path, elements: int) -> tuple[Path, Tensors]:
    text = f"(float[{elements}] x) => (float[{elements}] y) {{ y = Relu(x) }}"
    return _written(folder / "copy.onnx", text), {"x": np.ones(elements, np.float32)}


def _written(path: Path, graph: str) -> Path:
    """Write the model of a graph in ONNX's own text format."""
    import onnx

    header = f'<ir_version: {IR_VERSION}, opset_import: ["": {OPSET}]>'
    onnx.save(onnx.parser.parse_model(f"{header} {path.stem} {graph}"), path)
    return path


PROFILE_TIMEOUT_S = 90.0
"""A child process of a profile may take 90 s, if the profile's time is not shorter."""

GPU_NEEDS_S = 8.0
"""On a GPU a profile takes 8 s and more, most of them to load the engine twice: with less it is not begun."""

TOO_LATE = "the time budget is used up"

SLOWEST = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """The execution to profile: an engine at `batch_size`, and its settings.

    `model` is the source of the engine; `input_data` is that of the load, None: random. `threads` 0 means one per
    core. `graphs` means CUDA graphs, if the engine runs on a GPU. Its child processes have to end at `until_s` on
    the clock of `time.monotonic`.
    """

    engine: Engine
    model: Model
    batch_size: int
    threads: int
    graphs: bool
    seed: int = 0
    input_data: Path | None = None
    until_s: float = field(default=math.inf, compare=False)

    def feed(self) -> Tensors:
        """Return inputs in the engine's own types, as whole tensors. Raises BadInput."""
        given = given_samples(self.model, self.input_data, self.batch_size)
        samples = (given or synthetic_samples(self.model, self.batch_size, seed=self.seed)).repeated(
            self.batch_size
        )
        types = {spec.name: NUMPY_TYPES[spec.datatype] for spec in self.engine.inputs}
        whole = samples.feeds(self.batch_size)[0]
        return {name: array.astype(types[name], copy=False) for name, array in whole.items()}


def profile_engine(execution: Execution) -> EngineProfileRecord:
    """Profile an engine on this machine, in child processes. Raises RunFailed if it does not run."""
    engine = execution.engine
    if engine.device == "gpu" and execution.until_s - time.monotonic() < GPU_NEEDS_S:
        raise RunFailed("run", TOO_LATE)
    feed = execution.feed()
    file = dict(engine.files)[engine.model_file]
    whole = _run(execution, file, feed)
    nodes = {} if engine.backend == "onnxruntime" else _nodes(execution)
    layers = _run(execution, file, feed, layers=True, nodes=nodes)["layers"]
    return profile_record(execution, whole, layers, _measured_ceilings(execution))


def profile_record(
    execution: Execution, whole: dict[str, float], layers: Sequence[LayerTime], ceilings: CeilingsRecord
) -> EngineProfileRecord:
    """Return the record of these measurements; `whole` has `execution_ms`, and on a GPU `other_graph_ms`."""
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


def _nodes(execution: Execution) -> dict[str, LayerTime]:
    """Return the work of each node of the fp32 model at batch 1, by name, from ONNX Runtime's profile."""
    alone = replace(execution, batch_size=1, threads=0)
    whole = synthetic_samples(execution.model, 1, seed=execution.seed).feeds(1)[0]
    changes = {"backend": "onnxruntime", "device": "cpu", "layers": True, "optimized": False}
    return {layer.name: layer for layer in _run(alone, execution.model.path, whole, **changes)["layers"]}


def _seconds(execution: Execution, path: Path, feed: Tensors) -> float | None:
    """Return the seconds that ONNX Runtime takes for another model, on the same device with the same threads.

    Returns None if it does not run.
    """
    try:
        answer = _run(execution, path, feed, backend="onnxruntime")
    except RunFailed:
        return None
    return float(answer["execution_ms"]) / 1000


def _run(execution: Execution, file: Path, feed: Tensors, **changes: Any) -> dict[str, Any]:
    """Call `profiled` in a child process, with `changes` of its request; return its result. Raises RunFailed."""
    timeout_s = min(PROFILE_TIMEOUT_S, execution.until_s - time.monotonic())
    if timeout_s <= 0:
        raise RunFailed("run", TOO_LATE)
    request = {
        "file": str(file.absolute()),
        "backend": execution.engine.backend,
        "device": execution.engine.device,
        "batch_size": execution.batch_size,
        "threads": execution.threads,
        "graphs": execution.graphs,
        "layers": False,
        "optimized": True,
        **changes,
    }
    return run_in_child(partial(profiled, request, feed), limits=None, timeout_s=timeout_s)


log = logging.getLogger("tritune")


def time_use_of(
    winner: Trial,
    baseline: Trial | None,
    *,
    model: Model | None,
    seed: int = 0,
    input_data: Path | None = None,
    most_s: float = math.inf,
    on_event: OnEvent = events.ignore,
) -> TimeUseRecord | None:
    """Return the run's record of its request time; None if the server gave no timings.

    `model` is the source of the engines, and gives their inputs, with the values of `input_data`. Without one
    nothing is profiled. An engine that cannot be profiled, or not in `most_s`, is left out with a note: the
    recommendation is valid without it.
    """
    other = None if baseline is None or baseline.number == winner.number else baseline
    profiles: dict[Execution, EngineProfileRecord | None] = {}
    until_s = time.monotonic() + most_s

    def profile_of(trial: Trial | None) -> EngineProfileRecord | None:
        execution = None if trial is None or model is None else _execution(trial, model, seed, input_data, until_s)
        if execution is None:
            return None
        if execution not in profiles:
            profiles[execution] = _profiled(execution, on_event)
        return profiles[execution]

    profile = profile_of(winner)
    summary = time_summary(winner, profile, other)
    return TimeUseRecord(summary=summary, winner=profile, baseline=profile_of(other)) if summary else None


def _execution(trial: Trial, model: Model, seed: int, input_data: Path | None, until_s: float) -> Execution | None:
    """Return an execution of the trial's mean batch size, as it is padded; None if that is not known."""
    measured, config = trial.measurement, trial.served
    mean = None if measured is None or measured.server is None else measured.server.mean_batch_size
    if mean is None:
        return None
    batch = max(1, round(mean)) if config.engine.batched else 1
    batch = next((size for size in executed_batch_sizes(config) if size >= batch), batch)
    return Execution(
        engine=config.engine,
        model=model,
        batch_size=batch,
        threads=config.intra_op_threads,
        graphs=bool(config.cuda_graph_batch_sizes),
        seed=seed,
        input_data=input_data,
        until_s=until_s,
    )


def _profiled(execution: Execution, on_event: OnEvent) -> EngineProfileRecord | None:
    on_event(events.PhaseStarted(name="finish", detail=f"profiling {execution.engine.precision}"))
    try:
        return profile_engine(execution)
    except Exception as error:  # the recommendation is certified already: no failure to explain it may lose it
        log.exception("no profile of %s", execution.engine.model_file)
        reason = shortened(plain(error.reason if isinstance(error, RunFailed) else str(error)))
        on_event(events.Note(text=f"The layers' times are not known: {reason}", warning=True))
        return None
