"""Prepare a run before its server starts: model, engines, machine, price and search space."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from loadgen.errors import BadInput
from loadgen.files import sha256_of
from model_repo.repository.config_pbtxt import graph_batch_sizes
from model_repo.spec import Engine
from optimizer.accuracy.check import judge
from optimizer.accuracy.gate import (
    IF_FP16_FAILS,
    JUDGING_SHARE,
    Usable,
    VariantRequest,
    default_precisions,
    usable_variants,
)
from optimizer.accuracy.thresholds import AccuracyRule
from optimizer.batching.dynamic_batch import Batching
from optimizer.batching.kept import Settled, settled
from optimizer.cached import default_cache_dir, result_cache
from optimizer.child import call_limited, graph_limits, threads
from optimizer.config import OptimizeConfig
from optimizer.engines.cache import EngineCache
from optimizer.engines.candidates import device_of, engine_race
from optimizer.engines.standalone import EngineRunner
from optimizer.machine.hardware import Gpu, Hardware, hardware, machine_of
from optimizer.model.export import export_model
from optimizer.model.files import size_of, status_of
from optimizer.model.onnx_model import Model
from optimizer.model.weights import number_format
from optimizer.model_source import label_of, needs_export
from optimizer.precision.names import Precision
from optimizer.run.own_copies import model_folder
from optimizer.run.own_model import AskServer, own_engines
from optimizer.run.spaces import own_space, space_of
from search.choices import LARGEST_BATCH
from search.cost.cost import PriceRecord, price_for
from search.records.recommendation import AccuracyRecord, ModelRecord
from search.space import SearchSpace
from search.trials import events
from search.trials.events import OnEvent, timed_step
from search.trials.objective import OBJECTIVES

MIN_BUILD_S, BUILD_SHARE = 30.0, 0.25
"""An engine of TensorRT-RTX, usually built in seconds, may take a quarter of the time budget, 30 s at least."""

MODELS_FOLDER = "model"
"""The folder in the run's directory for rewritten models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Everything that a search needs in advance. `source` is the user's own file, as it was read.

    A model of the user's repository has no `source` and no `batching`.
    """

    source: Model | None
    batching: Batching | None
    record: ModelRecord
    engines: tuple[Engine, ...]
    machine: Hardware
    price: PriceRecord
    space: SearchSpace
    accuracy: tuple[AccuracyRecord, ...] = ()

    @property
    def model(self) -> Model | None:
        """Return the model that is served, which may be a rewritten copy of the user's."""
        return None if self.batching is None else self.batching.model


def check_model(config: OptimizeConfig) -> None:
    """Raise BadInput if there is no such model: a new run leaves no directory then."""
    if config.repository is not None:
        model_folder(config.repository, str(config.model))
    elif isinstance(config.model, Path):
        status_of(config.model)


def prepare(
    config: OptimizeConfig,
    *,
    work_dir: Path,
    may_build: bool = True,
    judged: bool = True,
    check_machine: Callable[[], None] = lambda: None,
    check_server: Callable[[], None] = lambda: None,
    ask_server: AskServer | None = None,
    on_event: OnEvent = events.ignore,
) -> Prepared:
    """Read and check the inputs of a run, and return its preparation. Rewritten models go to `work_dir`.

    `may_build` False: engines that are not in the cache are left out. `judged` False: the precisions have been
    judged elsewhere, on the same kind of hardware. `check_machine`, while nothing runs here, and `check_server`
    are called before the first step that may take minutes or, of an export, beside it, and after the quick checks
    of the user's input. `ask_server` completes the configuration of a model in the user's own repository; without
    it that has to be complete.

    Raises BadInput, in two lines, for anything that the user has to change.
    """
    if config.repository is not None:
        return _prepared_own(config, work_dir, ask_server, check_machine, on_event)
    exported = needs_export(config.model)
    cache_dir = config.cache_dir or default_cache_dir()
    cache, machine = result_cache(cache_dir), hardware()
    readings: list[Settled] = []

    def read(path: Path) -> None:
        with timed_step(on_event, "reading the model, proof of its batch") as step:
            sizes, data = config.shapes, config.input_data
            call = partial(settled, path, sizes, work_dir, input_data=data, cache=cache, processor=machine.cpu)
            readings.append(call_limited(call, model=path, limits=graph_limits(size_of(path))))
            step.cached = readings[-1].cached

    if exported:
        _checked("machine", check_machine, on_event)
        with threads(1) as pool:
            export = pool.submit(export_model, config.model, work_dir, cache=cache, meanwhile=read)
            _checked("server", check_server, on_event)
            with timed_step(on_event, "export") as step:
                step.cached = export.result().cached
    else:
        read(Path(config.model))
    known = readings[-1]
    model, batching = known.model, known.batching
    if batching.action != "kept":
        on_event(events.Note(text=batching.reason, warning=batching.action == "unbatched"))
    price = _price(config, machine)
    served_on = replace(machine, gpus=()) if batching.model.has_texts else machine
    if served_on != machine:
        on_event(events.Note(text="The model has strings, which only the CPU computes: the GPU is left out."))
    device = device_of(served_on)
    if not exported:
        _checked("machine", check_machine, on_event)
        _checked("server", check_server, on_event)
    request = VariantRequest(
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
        if_fp16_fails=() if config.precisions else IF_FP16_FAILS,
        cache=cache,
        processor=machine.cpu,
    )
    with engine_race(
        served_on,
        precisions=request.precisions,
        given=number_format(batching.model.graph.proto) if "fp32" in request.precisions else "fp32",
        cache=EngineCache(cache_dir),
        max_batch_size=LARGEST_BATCH,
        limit_ms=config.limits[0].limit_ms,
        build_limit_s=max(MIN_BUILD_S, BUILD_SHARE * config.time_budget_s),
        may_build=may_build,
        race=judged,  # a worker has all engines of the search
        excluded=[value for knob, value in config.excluded if knob == "engine"],
        on_event=on_event,
    ) as race:
        usable = usable_variants(batching.model, request, on_event, on_made=race.begin)
        records = list(usable.accuracy)

        def judge_engine(runner: EngineRunner, precision: Precision) -> AccuracyRecord:
            records.append(judged_engine(runner, precision, usable, served_on.gpus[0], config.accuracy))
            return records[-1]

        engines = race.engines(
            [(variant.precision, variant.model) for variant in usable.variants],
            None if usable.reference is None else judge_engine,
        )
    space = space_of(config, served_on, engines, LARGEST_BATCH, on_event=on_event)
    return Prepared(
        source=model,
        batching=batching,
        record=ModelRecord(
            name=batching.model.name,
            file=label_of(config.model),
            sha256=model.sha256,
            opset=model.opset,
            batching=batching.reason,
            fixed_rows=batching.model.fixed_rows,
        ),
        engines=space.engines,
        machine=machine,
        price=price,
        space=space,
        accuracy=tuple(records),
    )


def _prepared_own(
    config: OptimizeConfig,
    work_dir: Path,
    ask_server: AskServer | None,
    check_machine: Callable[[], None],
    on_event: OnEvent,
) -> Prepared:
    """Return the preparation of a model in the user's own repository; its precision and batch are not judged."""
    machine = hardware()
    price = _price(config, machine)
    _checked("machine", check_machine, on_event)
    with timed_step(on_event, "reading the model's configuration"):
        record, engines = own_engines(
            config, work_dir, on_gpu=bool(machine.gpus), ask=ask_server, on_event=on_event
        )
    space = own_space(config, machine, engines, on_event)
    return Prepared(
        source=None,
        batching=None,
        record=record,
        engines=space.engines,
        machine=machine,
        price=price,
        space=space,
    )


def _price(config: OptimizeConfig, machine: Hardware) -> PriceRecord:
    """Return the machine's price. Raises BadInput, also for an objective that it cannot measure."""
    if "power" in OBJECTIVES[config.objective].needs and not machine.gpus:
        raise BadInput(
            f"--objective {config.objective}: no power is measured on this machine, which has no NVIDIA GPU.",
            "Leave --objective out for the cheapest configuration, or run on a machine with a GPU.",
        )
    return price_for(
        machine_of(machine),
        price_file=config.price_file,
        per_hour=config.price_per_hour_usd,
        term=config.price_term,
    )


def judged_engine(
    runner: EngineRunner, precision: Precision, usable: Usable, gpu: Gpu, rule: AccuracyRule
) -> AccuracyRecord:
    """Return how close an engine is to fp32, as an earlier run on such a GPU with this driver found, or now."""
    assert usable.reference is not None
    assert usable.judgments is not None
    of = {
        "engine": sha256_of(dict(runner.engine.files)[runner.engine.model_file]),
        "runner": runner.name,
        "precision": precision,
        "gpu": gpu.name,
        "driver": gpu.driver,
    }
    found = usable.judgments.find(of)
    if found is not None:
        return found[0]
    sizes = graph_batch_sizes(LARGEST_BATCH)
    record = judge(runner, precision, usable.reference(), rule, further_sizes=sizes)
    usable.judgments.keep(of, record)
    return record


def _checked(what: str, check: Callable[[], None], on_event: OnEvent) -> None:
    with timed_step(on_event, f"check of the {what}"):
        check()
