"""What is settled before anything is served: model, engines, machine, price and search space."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from optimizer.accuracy import judge
from optimizer.batching import read_settled
from optimizer.child_limits import graph_limits
from optimizer.engine_cache import EngineCache, default_cache_dir
from optimizer.errors import BadInput
from optimizer.gpu_engines import device_of, engines_for
from optimizer.hardware import hardware, machine_of
from optimizer.limited_call import call_limited
from optimizer.model_source import needs_export, onnx_file
from optimizer.onnx_files import size_of
from optimizer.variants import JUDGING_SHARE, VariantRequest, default_precisions, usable_variants
from search import events
from search.cost import price_for
from search.prices import PriceError
from search.space import LARGEST_BATCH, MachineLimits, search_space

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from model_repo.spec import Engine
    from optimizer.accuracy import Runner
    from optimizer.batching import Batching
    from optimizer.config import OptimizeConfig
    from optimizer.gpu_engines import Device
    from optimizer.hardware import Hardware
    from optimizer.onnx_model import Model
    from optimizer.precisions import Precision
    from search.accuracy_record import AccuracyRecord
    from search.cost import Price
    from search.events import OnEvent
    from search.space import SearchSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Everything a search needs to know ahead. `source` is the user's own file, as it was read."""

    source: Model
    batching: Batching
    engines: tuple[Engine, ...]
    machine: Hardware
    price: Price
    space: SearchSpace
    accuracy: tuple[AccuracyRecord, ...] = ()

    @property
    def model(self) -> Model:
        """The model as it is served, which may be a rewritten copy of the user's."""
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
    """Read and check everything. Rewritten models go to `work_dir`; nothing is served.

    `may_build` False: engines that are not in the cache already are left out. `judged` False: the precisions have
    been judged elsewhere, on hardware like this. `check_server` is called before the first step that may take
    minutes, after the quick checks of what the user gave.

    Raises BadInput, in two lines, for anything that the user has to change.
    """
    exported = needs_export(config.model)
    if exported:
        check_server()
    path = onnx_file(config.model, work_dir)
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
        check_server()
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
        limit_ms=config.limit_ms,
        may_build=may_build,
        judge=None if usable.reference is None else judge_engine,
        on_event=on_event,
    )
    limits = MachineLimits(cores=machine.logical_cores, memory_bytes=_serving_memory(machine, engines))
    space = search_space(engines, limits, limit_ms=config.limit_ms, rows_per_request=_rows(config, engines))
    return Prepared(
        source=model,
        batching=batching,
        engines=engines,
        machine=machine,
        price=price,
        space=space,
        accuracy=tuple(records),
    )


def _rows(config: OptimizeConfig, engines: tuple[Engine, ...]) -> int:
    return config.client_batch if all(engine.batched for engine in engines) else 1


def _serving_memory(machine: Hardware, engines: tuple[Engine, ...]) -> int:
    """What all instances share: the GPU's memory where they run on one, and it says how much that is."""
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
