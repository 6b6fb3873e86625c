"""Prepare a run before its server starts: model, engines, machine, price and search space."""

from __future__ import annotations

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
from optimizer.child import call_limited, graph_limits
from optimizer.config import OptimizeConfig
from optimizer.engines.cache import EngineCache
from optimizer.engines.candidates import EngineRace, device_of
from optimizer.engines.standalone import EngineRunner
from optimizer.machine.hardware import Gpu, Hardware, hardware, machine_of
from optimizer.model.export import export_model
from optimizer.model.files import size_of, status_of
from optimizer.model.onnx_model import Model
from optimizer.model.weights import number_format
from optimizer.model_source import label_of, needs_export
from optimizer.precision.names import Precision
from optimizer.precision.variants import VariantOptions
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
class Inputs:
    """The first stage: the machine, its price, and the user's model. Rewritten models go to `work_dir`.

    `settled` is None for a model that has to be exported, and for one in the user's own repository.
    """

    work_dir: Path
    machine: Hardware
    price: PriceRecord
    settled: Settled | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Everything that a search needs in advance. `source` is the user's own file, as it was read.

    A model of the user's repository has no `source` and no `batching`.
    """

    source: Model | None = None
    batching: Batching | None = None
    record: ModelRecord
    machine: Hardware
    price: PriceRecord
    space: SearchSpace
    accuracy: tuple[AccuracyRecord, ...] = ()

    @property
    def engines(self) -> tuple[Engine, ...]:
        """Return the engines of the space."""
        return self.space.engines

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


def read_inputs(config: OptimizeConfig, *, work_dir: Path, on_event: OnEvent = events.ignore) -> Inputs:
    """Read and check what takes seconds. Raises BadInput, in two lines, for all that the user has to change."""
    machine = hardware()
    inputs = Inputs(work_dir=work_dir, machine=machine, price=_price(config, machine))
    if config.repository is not None or needs_export(config.model):
        return inputs
    return replace(inputs, settled=_settled(config, inputs, on_event, Path(config.model)))


def exported(config: OptimizeConfig, inputs: Inputs, *, on_event: OnEvent = events.ignore) -> Inputs:
    """Return the inputs with the model, exported if it has to be, which may take minutes. Raises BadInput."""
    if config.repository is not None or inputs.settled is not None:
        return inputs
    found: list[Settled] = []
    with timed_step(on_event, "export") as step:
        done = export_model(
            config.model,
            inputs.work_dir,
            cache=result_cache(config.cache_dir or default_cache_dir()),
            meanwhile=lambda path: found.append(_settled(config, inputs, on_event, path)),
        )
        step.cached = done.cached
    return replace(inputs, settled=found[-1])


def _settled(config: OptimizeConfig, inputs: Inputs, on_event: OnEvent, path: Path) -> Settled:
    call = partial(
        settled,
        path,
        config.shapes,
        inputs.work_dir,
        input_types=config.input_types,
        input_data=config.input_data,
        cache=result_cache(config.cache_dir or default_cache_dir()),
        processor=inputs.machine.cpu,
    )
    with timed_step(on_event, "reading the model, proof of its batch") as step:
        found = call_limited(call, model=path, limits=graph_limits(size_of(path)))
        step.cached = found.cached
    return found


def prepare(
    config: OptimizeConfig,
    inputs: Inputs,
    *,
    may_build: bool = True,
    judged: bool = True,
    ask_server: AskServer | None = None,
    on_event: OnEvent = events.ignore,
) -> Prepared:
    """Make the variants and engines of the model, and return the preparation of the run.

    `may_build` False: engines that are not in the cache are left out. `judged` False: the precisions have been
    judged elsewhere, on the same kind of hardware. `ask_server` completes the configuration of a model in the
    user's own repository; without it that has to be complete. Raises BadInput.
    """
    if inputs.settled is None:
        return _prepared_own(config, inputs, ask_server, on_event)
    cache_dir, machine = config.cache_dir or default_cache_dir(), inputs.machine
    model, batching = inputs.settled.model, inputs.settled.batching
    if batching.action != "kept" or config.input_types:
        on_event(events.Note(text=batching.reason, warning=batching.action == "unbatched"))
    served_on = replace(machine, gpus=()) if batching.model.has_texts else machine
    if served_on != machine:
        on_event(events.Note(text="The model has strings, which only the CPU computes: the GPU is left out."))
    device = device_of(served_on)
    request = VariantRequest(
        precisions=config.precisions or default_precisions(device),
        rule=config.accuracy,
        options=VariantOptions(
            work_dir=inputs.work_dir,
            device=device,
            io_precision=config.io_precision,
            calibration_method=config.calibration_method,
        ),
        calibration_data=config.calibration_data,
        input_data=config.input_data,
        judging_budget_s=JUDGING_SHARE * config.time_budget_s,
        seed=config.seed,
        judged=judged,
        if_fp16_fails=() if config.precisions else IF_FP16_FAILS,
        cache=result_cache(cache_dir),
        processor=machine.cpu,
    )
    with EngineRace(
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
        machine=machine,
        price=inputs.price,
        space=space,
        accuracy=tuple(records),
    )


def _prepared_own(
    config: OptimizeConfig, inputs: Inputs, ask_server: AskServer | None, on_event: OnEvent
) -> Prepared:
    """Return the preparation of a model in the user's own repository; its precision and batch are not judged."""
    machine = inputs.machine
    with timed_step(on_event, "reading the model's configuration"):
        record, engines = own_engines(
            config, inputs.work_dir, on_gpu=bool(machine.gpus), ask=ask_server, on_event=on_event
        )
    space = own_space(config, machine, engines, on_event)
    return Prepared(record=record, machine=machine, price=inputs.price, space=space)


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
