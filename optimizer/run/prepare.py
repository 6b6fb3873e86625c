"""Prepare a run before its server starts: model, engines, machine, price and search space."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from loadgen.errors import BadInput
from model_repo.spec import Engine
from optimizer.accuracy.check import Runner, judge
from optimizer.accuracy.gate import JUDGING_SHARE, VariantRequest, default_precisions, usable_variants
from optimizer.batching.dynamic_batch import Batching, read_settled
from optimizer.config import OptimizeConfig
from optimizer.engines.cache import EngineCache, default_cache_dir
from optimizer.engines.candidates import Device, device_of, engines_for
from optimizer.limited_call import call_limited
from optimizer.machine.child_limits import graph_limits
from optimizer.machine.hardware import Hardware, hardware, machine_of
from optimizer.model.export import onnx_file
from optimizer.model.files import size_of
from optimizer.model.onnx_model import Model
from optimizer.model_source import needs_export
from optimizer.precision.names import Precision
from search.choices import LARGEST_BATCH
from search.cost.cost import Price, price_for
from search.cost.prices import PriceError
from search.records.accuracy import AccuracyRecord
from search.space import MachineLimits, SearchSpace, search_space
from search.trials import events
from search.trials.events import OnEvent, timed_step

MODELS_FOLDER = "model"
"""The folder in the run's directory for rewritten models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Everything that a search needs in advance. `source` is the user's own file, as it was read."""

    source: Model
    batching: Batching
    engines: tuple[Engine, ...]
    machine: Hardware
    price: Price
    space: SearchSpace
    accuracy: tuple[AccuracyRecord, ...] = ()

    @property
    def model(self) -> Model:
        """Return the model that is served, which may be a rewritten copy of the user's."""
        return self.batching.model


def prepare(
    config: OptimizeConfig,
    *,
    work_dir: Path,
    may_build: bool = True,
    judged: bool = True,
    check_server: Callable[[], None] = lambda: None,
    on_event: OnEvent = events.ignore,
) -> Prepared:
    """Read and check the inputs of a run, and return its preparation. Rewritten models go to `work_dir`.

    `may_build` False: engines that are not in the cache are left out. `judged` False: the precisions have been
    judged elsewhere, on the same kind of hardware. `check_server` is called before the first step that may take
    minutes, after the quick checks of the user's input.

    Raises BadInput, in two lines, for anything that the user has to change.
    """
    exported = needs_export(config.model)
    path = _exported(config, work_dir, check_server, on_event) if exported else onnx_file(config.model, work_dir)
    with timed_step(on_event, "reading the model, proof of its batch"):
        model, batching = call_limited(
            partial(read_settled, path, config.shapes, work_dir), model=path, limits=graph_limits(size_of(path))
        )
    if batching.action != "kept":
        on_event(events.Note(text=batching.reason, warning=batching.action == "unbatched"))
    machine = hardware()
    if config.objective == "energy" and not machine.gpus:
        raise BadInput(
            "--objective energy: no power is measured on this machine, which has no NVIDIA GPU.",
            "Leave --objective out for the cheapest configuration, or run on a machine with a GPU.",
        )
    price = _price(config, machine)
    device = device_of(machine)
    if not exported:
        _checked(check_server, on_event)
    usable = usable_variants(batching.model, _variant_request(config, device, work_dir, judged=judged), on_event)
    records = list(usable.accuracy)

    def judge_engine(runner: Runner, precision: Precision) -> AccuracyRecord:
        assert usable.reference is not None
        records.append(judge(runner, precision, usable.reference, config.accuracy))
        return records[-1]

    engines = engines_for(
        [(variant.precision, variant.model) for variant in usable.variants],
        machine,
        cache=EngineCache(config.cache_dir or default_cache_dir()),
        max_batch_size=LARGEST_BATCH,
        limit_ms=config.limits[0].limit_ms,
        may_build=may_build,
        judge=None if usable.reference is None else judge_engine,
        on_event=on_event,
    )
    limits = MachineLimits(cores=machine.logical_cores, memory_bytes=_serving_memory(machine, engines))
    space = search_space(
        engines, limits, limit_ms=config.limits[0].limit_ms, rows_per_request=_rows(config, engines)
    )
    return Prepared(
        source=model,
        batching=batching,
        engines=engines,
        machine=machine,
        price=price,
        space=space,
        accuracy=tuple(records),
    )


def _exported(config: OptimizeConfig, work_dir: Path, check_server: Callable[[], None], on_event: OnEvent) -> Path:
    """Return the model as an ONNX file, exported once the server has been checked."""
    _checked(check_server, on_event)
    with timed_step(on_event, "export"):
        return onnx_file(config.model, work_dir)


def _checked(check_server: Callable[[], None], on_event: OnEvent) -> None:
    with timed_step(on_event, "check of machine and server"):
        check_server()


def _rows(config: OptimizeConfig, engines: tuple[Engine, ...]) -> int:
    return config.client_batch if all(engine.batched for engine in engines) else 1


def _serving_memory(machine: Hardware, engines: tuple[Engine, ...]) -> int:
    """Return the bytes that all instances share: the machine's memory, or the GPU's if less and engines use it."""
    on_gpu = any(engine.device == "gpu" for engine in engines)
    gpu_bytes = [gpu.memory_bytes for gpu in machine.gpus[:1] if on_gpu and gpu.memory_bytes is not None]
    return min([machine.memory_bytes, *gpu_bytes])


def _variant_request(config: OptimizeConfig, device: Device, work_dir: Path, *, judged: bool) -> VariantRequest:
    return VariantRequest(
        precisions=config.precisions or default_precisions(device),
        rule=config.accuracy,
        device=device,
        work_dir=work_dir,
        io_precision=config.io_precision,
        calibration_method=config.calibration_method,
        calibration_data=config.calibration_data,
        input_data=config.input_data,
        judging_budget_s=JUDGING_SHARE * config.time_budget_s,
        seed=config.seed,
        judged=judged,
    )


def _price(config: OptimizeConfig, machine: Hardware) -> Price:
    try:
        return price_for(
            machine_of(machine),
            price_file=config.price_file,
            per_hour=config.price_per_hour_usd,
            term=config.price_term,
        )
    except PriceError as error:
        what, _, fix = str(error).partition("\n")
        raise BadInput(what, fix) from error
