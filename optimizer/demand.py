"""The traffic that a run is about: from its options to what the search sends and simulates."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, get_args

from loadgen.arrival_text import arrivals_from_file, arrivals_from_text
from loadgen.arrivals import recorded_rate_per_s
from loadgen.errors import LoadError
from loadgen.samples import shapes_in_file
from model_repo.spec import Protocol
from optimizer.errors import BadInput
from search.demand import Demand, DemandRecord
from search.request_shapes import request_shapes
from search.space import LARGEST_BATCH

if TYPE_CHECKING:
    from pathlib import Path

    from loadgen.plan import Arrivals
    from optimizer.config import OptimizeConfig

TRACE_FILE = "trace.txt"
"""The trace in the run's directory: a copy, so that the run can be gone on with and repeated."""

INPUT_DATA = "input-data"
"""The samples or lengths in the run's directory, with the suffix of the file that was given."""

MOST_KEPT_BYTES = 256 * 2**20
"""Of input data: more of it stays where it is."""

STEADY = ("poisson", "constant", "gamma", "trace")
"""Arrivals that look the same whenever one looks: there is one rate at the limit, and short runs can tell it."""


def demand_fields(
    arrivals: str | None, trace: Path | None, client_batch: int, protocol: str = "http"
) -> dict[str, object]:
    """The options as fields of the configuration, checked. Raises BadInput."""
    if protocol not in get_args(Protocol):
        raise BadInput(f"--protocol {protocol} is unknown.", f"Give {' or '.join(get_args(Protocol))}.")
    if not 1 <= client_batch <= LARGEST_BATCH:
        raise BadInput(
            f"--client-batch {client_batch} is out of range.",
            f"Give the rows that each request carries, 1 to {LARGEST_BATCH} (the largest batch that is served).",
        )
    if arrivals is not None and trace is not None:
        raise BadInput("--trace brings its own arrivals.", "Leave --arrivals out.")
    kind = _checked(arrivals or "poisson", trace).kind
    if kind == "rates":
        raise BadInput(
            f"--trace {trace} holds rates over time, and no single rate is the most under those.",
            "Give a time in seconds a line. For rates over a day see optimize fleet --traffic.",
        )
    if kind not in STEADY:
        raise BadInput(
            f"--arrivals {arrivals} changes within a run, and no single rate is the most under that.",
            "Give poisson, constant or gamma:cv=2, or a recorded --trace. loadtest sends the others.",
        )
    return {
        "arrivals": arrivals or "poisson",
        "trace": trace and trace.absolute(),
        "client_batch": client_batch,
        "protocol": protocol,
    }


def keep_trace(config: OptimizeConfig) -> None:
    """Copy the trace into the run's directory, unless a run that is gone on with has done so."""
    kept = config.output / TRACE_FILE
    if config.trace is not None and not kept.exists():
        _copy(config.trace, kept)


def keep_input_data(config: OptimizeConfig) -> OptimizeConfig:
    """The configuration with a copy of its input data in the run's directory, from which it can be repeated.

    One that is there already is used, whatever became of the file it was made of.
    """
    if config.input_data is None:
        return config
    kept = config.output / f"{INPUT_DATA}{config.input_data.suffix}"
    if not kept.exists():
        if not config.input_data.is_file() or config.input_data.stat().st_size > MOST_KEPT_BYTES:
            return config
        _copy(config.input_data, kept)
    return config.model_copy(update={"input_data": kept})


def demand_of(config: OptimizeConfig, *, batched: bool) -> Demand:
    """What is sent and simulated; `keep_trace` comes before. Raises BadInput for what cannot be sent."""
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
    trace = None if config.trace is None else config.output / TRACE_FILE
    arrivals = _checked(config.arrivals, trace)
    record = DemandRecord(
        arrivals=config.arrivals if config.trace is None else f"trace {config.trace.name}",
        trace=None if trace is None else trace.name,
        trace_requests=None if trace is None else len(arrivals.times_s),
        recorded_rate_per_s=None if trace is None else recorded_rate_per_s(arrivals),
        rows_per_request=rows,
        mixed_shapes=mixed,
        input_data=_name_within(config.output, config.input_data),
        protocol=config.protocol,
        shared_memory=config.shared_memory,
    )
    shapes = request_shapes(each) if mixed else None
    return Demand(
        arrivals=arrivals,
        rows_per_request=rows,
        shapes=shapes,
        predictable=not mixed or shapes is not None,
        record=record,
    )


def _copy(source: Path, target: Path) -> None:
    """The whole file or none: one that is there is believed when the run is gone on with."""
    part = target.with_suffix(".part")
    shutil.copyfile(source, part)
    part.replace(target)


def _name_within(folder: Path, path: Path | None) -> str | None:
    return path.name if path is not None and path.parent == folder else None


def _checked(text: str, trace: Path | None) -> Arrivals:
    try:
        return arrivals_from_text(text) if trace is None else arrivals_from_file(trace)
    except LoadError as error:
        what, _, fix = str(error).partition("\n")
        option = f"--arrivals {text}" if trace is None else f"--trace {trace}"
        raise BadInput(f"{option}: {what}", fix) from error
