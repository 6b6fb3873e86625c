"""Convert records of schema version 1 to version 2, and leave out what version 2 no longer has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from loadgen.records.record import ANSWERS_OF_VERSION_1

Data = dict[str, Any]
"""A JSON object that was read."""

_RENAMED = {
    "neighbours": "contention",
    "demand": "workload",
    "kept": "met",
    "p99_ms": "latency_ms",
    "p99_low_ms": "latency_low_ms",
    "p99_high_ms": "latency_high_ms",
}
"""Keys of version 1 and 2, of trials, their certificates and load runs, recommendations and confirmations."""


_GONE = {1: "pace", 2: "machine_epoch"}
"""The key of trials of each version that is no longer read."""


def upgrade(data: object) -> object:
    """Return a trial, recommendation or confirmation of version 1 as one of version 2; other data unchanged.

    Without the key that is gone.
    """
    if not isinstance(data, dict):
        return data
    version = data.get("schema_version")
    gone = _GONE.get(version) if isinstance(version, int) else None
    if gone in data:
        data = {name: value for name, value in data.items() if name != gone}
    return _try(_upgrade, data) if version == 1 else data


def upgrade_slo(data: object) -> object:
    """Return `limit_ms`, `quantile` and `also`, of an SLO or of settings, as `limits`; other data unchanged."""
    return _try(_upgrade_slo, data) if isinstance(data, dict) and "limit_ms" in data else data


def _try(change: Callable[[Data], Data], data: Data) -> Data:
    """Return data unchanged that version 1 did not write: the records of version 2 report its errors."""
    try:
        return change(data)
    except (AttributeError, TypeError):
        return data


def _upgrade(data: Data) -> Data:
    new = _renamed(data) | {"schema_version": 2}
    if isinstance(why := new.get("why"), dict) and why.get("cause") == "neighbour":
        new["why"] = {**why, "cause": "adjacent"}
    if isinstance(new.get("certificate"), dict):
        new["certificate"] = _upgrade_certificate(new["certificate"])
    if isinstance(runs := new.get("load_runs"), list):
        new["load_runs"] = [_renamed(run) if isinstance(run, dict) else run for run in runs]
    if "answer" in new:  # a confirmation
        new["answer"] = ANSWERS_OF_VERSION_1.get(new["answer"], new["answer"])
    return new


def _renamed(data: Data) -> Data:
    return {_RENAMED.get(name, name): value for name, value in data.items()}


def _upgrade_slo(data: Data) -> Data:
    new = {name: value for name, value in data.items() if name not in ("limit_ms", "quantile", "also")}
    first = {"limit_ms": data["limit_ms"], "quantile": data.get("quantile", 0.99)}
    return new | {"limits": [first, *data.get("also", ())]}


def _upgrade_certificate(data: Data) -> Data:
    """Return `p99_ms` and its bounds, which belonged to the first limit, and `also`, as `latencies`."""
    new = _renamed(data)
    first: Data = {
        name: new.pop(name) for name in ("latency_ms", "latency_low_ms", "latency_high_ms") if name in new
    }
    first |= {"quantile": new.pop("quantile", 0.99), "violations": new.pop("violations", None)}
    others = [{name: value for name, value in one.items() if name != "limit_ms"} for one in new.pop("also", ())]
    return new | {"latencies": [first, *others]}
