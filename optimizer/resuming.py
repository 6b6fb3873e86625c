"""`--resume`: which options may change when a run goes on, and which have decided what it measured already."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loadgen.units import duration_ms
from optimizer.arguments import check_file, check_money, check_range, check_term
from optimizer.config import saved_config
from optimizer.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from optimizer.config import OptimizeConfig

FIELDS = {
    "time_budget": "time_budget_s",
    "price_per_hour": "price_per_hour_usd",
    "price_file": "price_file",
    "price_term": "price_term",
    "rate": "rate_to_serve_per_s",
    "peak_rate": "peak_rate_per_s",
    "pareto": "pareto",
    "workers": "workers",
    "cache_dir": "cache_dir",
    "server_port": "server_port",
    "server_url": "server_url",
    "storage": "storage",
}
"""Options that apply to a run that goes on, and their fields: no measured trial depends on them."""

OF_THIS_CALL = frozenset({"resume", "baseline", "dry_run", "json", "debug", "version"})
"""Options that are no part of a run's configuration."""


def resumed_config(
    directory: Path, *, given: Mapping[str, tuple[str, Any]], storage: str | None, server_url: str | None = None
) -> tuple[OptimizeConfig, list[str]]:
    """The configuration of the run to go on with, changed by the options that may change. Raises BadInput.

    `given` has the options on the command line: parameter -> the option as it is written, and its value. Addresses
    may hold passwords, which were not kept: they come from the environment as well.
    """
    for name, (option, _) in given.items():
        if name not in FIELDS and name not in OF_THIS_CALL:
            raise BadInput(
                f"{option} cannot be given with --resume: the run in {directory} has its own already.",
                f"Leave {option} out, or start a new run without --resume.",
            )
    config = saved_config(directory.absolute())
    _check_sense(config, given)
    values = {name: value for name, (_, value) in given.items()}
    changes = {FIELDS[name]: _as_kept(name, value) for name, value in values.items() if name in FIELDS}
    again = {"storage": storage, "server_url": server_url or config.server_url}
    changed = config.model_copy(update=changes | again)
    check_money(changed.price_per_hour_usd, changed.rate_to_serve_per_s, changed.peak_rate_per_s)
    check_range("--server-port", changed.server_port, 1, 65535)
    check_term(changed.price_term)
    if "price_file" in given:
        check_file("--price-file", changed.price_file)
    return changed, [f"Going on with the run in {directory}."]


def _check_sense(config: OptimizeConfig, given: Mapping[str, object]) -> None:
    """Refuse what may change, but not in this run. Raises BadInput."""
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


def _as_kept(name: str, value: Any) -> Any:
    if name == "time_budget":
        return duration_ms(value, option="--time-budget", default_unit="s")[0] / 1000
    return value.absolute() if name in ("price_file", "cache_dir") else value
