"""The workload of a run: from its options to the requests that the search sends and simulates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from loadgen.errors import BadInput, LoadError
from loadgen.files import copy_whole
from loadgen.spec.plan import Arrivals, Payload, arrivals_from_file, arrivals_from_text
from loadgen.traffic.arrivals import recorded_rate_per_s
from loadgen.traffic.samples import shapes_in_file
from model_repo.spec import Engine, Protocol, chosen_shapes
from optimizer.config import OptimizeConfig
from optimizer.model.samples import requests_from_data
from optimizer.run.spaces import START_FILE
from search.records.slo import WorkloadRecord
from search.workload import Workload, request_shapes

TRACE_FILE = "trace.txt"
"""The trace in the run's directory: a copy, so that the run can be resumed and repeated."""

INPUT_DATA = "input-data"
"""The samples or lengths in the run's directory, with the suffix of the file that was given."""

MAX_KEPT_BYTES = 256 * 2**20
"""Input data of at most 256 MiB is copied into the run's directory; larger files are used in their own place."""

STEADY = ("poisson", "constant", "gamma", "trace")
"""Arrivals with the same statistics at all times: they have one capacity, and short runs can measure it."""


def check_traffic(arrivals: str, trace: Path | None) -> None:
    """Raise BadInput for arrivals, or a trace, that the search cannot send at one rate."""
    kind = _checked(arrivals, trace).kind
    if kind == "rates":
        raise BadInput(
            f"--trace {trace} holds rates over time, and no single rate is the most under those.",
            "Give a time in seconds a line.",
        )
    if kind not in STEADY:
        raise BadInput(
            f"--arrivals {arrivals} changes within a run, and no single rate is the most under that.",
            "Give poisson, constant or gamma:cv=2, or a recorded --trace. loadtest sends the others.",
        )


def keep_files(config: OptimizeConfig) -> None:
    """Copy the trace and the start into the run's directory, unless a resumed run has done so."""
    for given, name in ((config.trace, TRACE_FILE), (config.start_from, START_FILE)):
        kept = config.output / name
        if given is not None and not kept.exists():
            copy_whole(given, kept)


def keep_input_data(config: OptimizeConfig) -> OptimizeConfig:
    """Return the configuration with a copy of its input data in the run's directory, to repeat the run from.

    An existing copy is used, even if the original has changed or is gone.
    """
    data, found = config.input_data, kept_input_data(config)
    if data is None or found is not config:
        return found
    if not data.is_file() or data.stat().st_size > MAX_KEPT_BYTES:
        return config
    copy_whole(data, config.output / f"{INPUT_DATA}{data.suffix}")
    return kept_input_data(config)


def kept_input_data(config: OptimizeConfig) -> OptimizeConfig:
    """Return the configuration with the copy of its input data, if the run's directory has one."""
    if config.input_data is None:
        return config
    kept = config.output / f"{INPUT_DATA}{config.input_data.suffix}"
    return replace(config, input_data=kept) if kept.exists() else config


def workload_of(config: OptimizeConfig, *, batched: bool) -> Workload:
    """Return the workload to send and simulate, with the trace that was kept if it was. Raises BadInput."""
    rows = config.client_batch
    if rows > 1 and not batched:
        raise BadInput(
            f"--client-batch {rows} needs a model with a batch dimension, and this one is served without.",
            "Leave --client-batch out, or export the model with a dynamic batch.",
        )
    each = [] if config.input_data is None else shapes_in_file(config.input_data)
    mixed = len(set(each)) > 1
    if mixed and rows > 1:
        raise BadInput(
            f"The samples in {config.input_data} differ in shape, so {rows} of them make no request.",
            "Leave --client-batch out, or pad them to one shape.",
        )
    kept = config.output / TRACE_FILE
    trace = config.trace if config.trace is None or not kept.exists() else kept
    arrivals = _checked(config.arrivals, trace)
    record = WorkloadRecord(
        arrivals=config.arrivals if config.trace is None else f"trace {config.trace.name}",
        trace=None if trace is None else trace.name,
        trace_requests=None if trace is None else len(arrivals.times_s),
        recorded_rate_per_s=None if trace is None else recorded_rate_per_s(arrivals),
        rows_per_request=rows,
        mixed_shapes=mixed,
        input_data=config.input_data.name
        if config.input_data is not None and config.input_data.parent == config.output
        else None,
        protocol=protocol_of(config),
        shared_memory=config.shared_memory,
    )
    shapes = request_shapes(each) if mixed else None
    return Workload(
        arrivals=arrivals,
        rows_per_request=rows,
        shapes=shapes,
        predictable=not mixed or shapes is not None,
        record=record,
    )


def protocol_of(config: OptimizeConfig) -> Protocol:
    """Return the protocol of a run's requests: HTTP until another is chosen."""
    return "http" if config.protocol == "auto" else config.protocol


def checked_workload(config: OptimizeConfig, engine: Engine) -> Workload:
    """Return the workload for a model. Raises BadInput, also for samples that its inputs do not take.

    Of a model in the user's own repository, whose inputs may be optional, only the server knows that.
    """
    workload = workload_of(config, batched=engine.batched)
    if config.input_data is not None and engine.own is None:
        requests_from_data(payload_of(config, engine), engine.inputs, batched=engine.batched)
    return workload


def payload_of(config: OptimizeConfig, engine: Engine) -> Payload:
    """Return the contents of the requests to a model."""
    return payload_with(config, chosen_shapes(engine.inputs))


def payload_with(config: OptimizeConfig, shapes: Mapping[str, tuple[int, ...]]) -> Payload:
    """Return the same from the shapes that were chosen for inputs with open axes."""
    return Payload(
        batch_size=config.client_batch,
        shapes=shapes,
        data_file=config.input_data,
        seed=config.seed,
        shared_memory=config.shared_memory,
    )


def _checked(text: str, trace: Path | None) -> Arrivals:
    try:
        return arrivals_from_text(text) if trace is None else arrivals_from_file(trace)
    except LoadError as error:
        what, _, fix = str(error).partition("\n")
        option = f"--arrivals {text}" if trace is None else f"--trace {trace}"
        raise BadInput(f"{option}: {what}", fix) from error
