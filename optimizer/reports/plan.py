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
from optimizer.run.recommendation import machine_record
from optimizer.run_file import objective_of, slo_of
from search.labels import hidden_knobs
from search.trials.trial import config_to_record
from search.workload import Workload

PLAN_SCHEMA_VERSION = 1


def plan_record(
    prepared: Prepared, config: OptimizeConfig, workload: Workload, notes: Sequence[str]
) -> dict[str, Any]:
    """Return the plan as values for JSON; `knobs` has the values to try of each knob."""
    space = prepared.space
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
        "machine": machine_record(prepared.machine),
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


def plan_view(plan: dict[str, Any]) -> RenderableType:
    """Return a plan for the terminal."""
    model, workload, objective, machine, price = (
        plan[name] for name in ("model", "workload", "objective", "machine", "price")
    )
    rows = model.fixed_rows * workload.rows_per_request
    at = "" if objective.rate_per_s is None else f" at {format_rate(objective.rate_per_s)} requests/s per replica"
    hidden = hidden_knobs(plan["baseline"])
    texts = {
        "model": model.label,
        "batching": model.batching,
        "inputs": "\n".join(f"{one['name']} {one['datatype']} {[*one['shape']]}" for one in plan["inputs"]),
        "limit": text.limits_text(plan["slo"]),
        "objective": f"the lowest {objective.name}{at}",
        "traffic": f"{workload.arrivals}, {rows} row{'s' if rows > 1 else ''} per request",
        "machine": ", ".join((machine.cpu, f"{machine.cores} cores", *machine.gpus)),
        "price": f"{format_dollars(price.usd_per_hour)} an hour: {price.describes}",
        "server": plan["server"],
        **{name: ", ".join(map(str, values)) for name, values in plan["knobs"].items() if name not in hidden},
        "configurations": f"{plan['configurations']}, of which a part is tried",
        "time": f"at most {plan['time_budget_s']:g} s; about 3 s for a trial that cannot win, 15 for others",
        "output": plan["output"],
    }
    return terminal_table(table_of_texts((), [(name, [value]) for name, value in texts.items()]))
