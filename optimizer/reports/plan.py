"""The plan of a run, for `--dry-run`: as a table, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import RenderableType

from loadgen.printable import printable
from loadgen.records.formats import format_dollars, format_rate
from loadgen.reports.kit import table_of_texts, terminal_table
from optimizer.config import OptimizeConfig
from optimizer.reports import text
from optimizer.run.prepare import Prepared
from optimizer.run_file import objective_of, slo_of
from search.trials.trial import config_to_record
from search.workload import Workload

PLAN_SCHEMA_VERSION = 1


def plan_record(
    prepared: Prepared, config: OptimizeConfig, workload: Workload, notes: Sequence[str]
) -> dict[str, Any]:
    """Return the plan as values for JSON; `knobs` has the values to try of each knob."""
    space, machine = prepared.space, prepared.machine
    return {
        "schema_version": PLAN_SCHEMA_VERSION,
        "model": prepared.record,
        "inputs": [
            {"name": spec.name, "datatype": spec.datatype, "shape": spec.concrete_shape or spec.shape}
            for spec in prepared.engines[0].inputs
        ],
        "slo": slo_of(config),
        "objective": objective_of(config).record,
        "workload": workload.record,
        "machine": {
            "cpu": machine.cpu,
            "cores": machine.logical_cores,
            "memory_bytes": machine.memory_bytes,
            "gpus": [gpu.name for gpu in machine.gpus],
        },
        "price": prepared.price,
        "server": config.server,
        "knobs": space.axes(),
        "configurations": space.size(),
        "baseline": config_to_record(space.baseline()),
        "start": None if space.start is None else config_to_record(space.start),
        "time_budget_s": config.time_budget_s,
        "output": printable(str(config.output)),
        "notes": [printable(note, lines=True) for note in notes],
    }


def plan_view(prepared: Prepared, config: OptimizeConfig) -> RenderableType:
    """Return the plan of a run, for `--dry-run`."""
    space, machine, axes = prepared.space, prepared.machine, prepared.space.axes()
    if prepared.source is None:
        del axes["intra_op_threads"]  # of a user's own model they are its own affair
    if prepared.engines[0].is_ensemble:
        axes = {name: values for name, values in axes.items() if "." in name}
    rows = [
        ("model", prepared.record.label),
        ("batching", prepared.record.batching),
    ]
    rows += [
        ("input", f"{tensor.name} {tensor.datatype} {list(tensor.concrete_shape or tensor.shape)}")
        for tensor in prepared.engines[0].inputs
    ]
    rows.append(("limit", text.limits_text(slo_of(config))))
    objective = objective_of(config)
    if not objective.by_rate:
        rate = objective.rate_per_s
        at = "" if rate is None else f" at {format_rate(rate)} requests/s per replica"
        rows.append(("objective", f"the lowest {config.objective}{at}"))
    arrivals = config.arrivals if config.trace is None else f"trace {config.trace.name}"
    count = config.client_batch * prepared.record.fixed_rows
    items = f"{count} row{'s' if count > 1 else ''} per request"
    rows += [
        ("traffic", f"{arrivals}, {items}"),
        (
            "machine",
            ", ".join([machine.cpu, f"{machine.logical_cores} cores", *(gpu.name for gpu in machine.gpus)]),
        ),
        ("price", f"{format_dollars(prepared.price.usd_per_hour)} an hour: {prepared.price.describes}"),
        ("server", config.server),
        *((name, ", ".join(map(str, values))) for name, values in axes.items()),
        ("configurations", f"{space.size()}, of which a part is tried"),
        ("time", f"at most {config.time_budget_s:g} s; about 3 s for a trial that cannot win, 15 for others"),
        ("output", str(config.output)),
    ]
    return terminal_table(table_of_texts((), [(name, [value]) for name, value in rows]))
