"""`--resume`: go on with a run. Options may change if no measured trial depends on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from loadgen.errors import BadInput
from loadgen.options.command import Values
from loadgen.options.sources import Origins, note_on
from optimizer.command.arguments import check_rates, recorded
from optimizer.config import KEPT, OF_THIS_CALL, OptimizeConfig
from optimizer.run_file import saved_config

FIELDS = {name: one.field for name, one in KEPT.items() if one.declared.more.may_change}
"""Options that may change when a run goes on, and their fields: no measured trial depends on them."""


def resumed_config(values: Values, origins: Origins) -> tuple[OptimizeConfig, list[str]]:
    """Return the configuration of the run to go on with, changed by the options that may change. Raises BadInput.

    Addresses are read again, because their passwords were not saved. TRITUNE_STORAGE and TRITUNE_SERVER_URL may be
    set for other runs, and so never cause a refusal.
    """
    directory = values["resume"]
    given = {
        name: one for name, one in origins.items() if name not in KEPT or one.place != KEPT[name].declared.variable
    }
    for name, origin in given.items():
        if name not in FIELDS and name not in OF_THIS_CALL:
            written = origin.written(name)
            raise BadInput(
                f"{written} cannot be given with --resume: the run in {directory} has its own already.",
                f"Leave {written} out, or start a new run without --resume.",
            )
    config = saved_config(directory.absolute())
    _check_sense(config, given)
    notes = [f"Going on with the run in {directory}."]
    changes = {
        FIELDS[name]: KEPT[name].declared.value(values[name], KEPT[name].flag, notes.append)
        for name in given.keys() & FIELDS.keys()
    }
    again = {"storage": values["storage"], "server_url": values["server_url"] or config.server_url}
    now = {name: place for name, place in recorded(origins).items() if name in FIELDS and name in origins}
    changed = replace(config, **{**changes, **again, "origins": config.origins | now})
    check_rates(changed)
    return changed, notes + note_on(origins)


def _check_sense(config: OptimizeConfig, given: Mapping[str, object]) -> None:
    """Raise BadInput for options that may change, but not in this run."""
    if "rate" in given and config.objective == "latency":
        raise BadInput(
            f"--rate cannot change with --resume: the run compares latencies at {config.rate_to_serve_per_s:g}/s.",
            "Leave --rate out, or start a new run without --resume.",
        )
    if "server_url" in given and config.server != "remote":
        raise BadInput(
            f"--server-url is for a remote server, and the run measures on one of the kind {config.server}.",
            "Leave --server-url out, or start a new run without --resume.",
        )
