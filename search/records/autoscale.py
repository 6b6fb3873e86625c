"""`autoscale.json` of a run: how its recommendation does under an autoscaler, with which settings."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, ValidationError

from search.record import Rate, Record

AUTOSCALE_FILE = "autoscale.json"


class FleetDayRecord(Record):
    """A way to choose the number of replicas, and what came of it in the replay."""

    name: str
    target_rate_per_s: Rate | None = Field(default=None, description="Per replica; null without an autoscaler.")
    down_window_s: float | None = Field(default=None, description="Stabilization window of scaling down.")
    min_replicas: int
    max_replicas: int
    late_share: float = Field(description="Share of the requests that are over the limit.")
    minutes_over: int = Field(description="Minutes in which a larger share than allowed is late.")
    replica_hours: float
    usd: float


class AutoscaleRecord(Record):
    """The replay of some traffic. `chosen` costs the least of all settings that keep the share, if one does."""

    traffic: str
    duration_s: float
    mean_rate_per_s: Rate
    peak_rate_per_s: Rate
    capacity_per_s: Rate = Field(description="Capacity of a replica, as measured at the machine's usual speed.")
    start_s: float = Field(description="Time until a new replica is ready.")
    allowed_share: float = Field(description="Share of requests that may be late, of the limit.")
    settings_tried: int
    kept: bool = Field(description="True if `chosen` keeps the share.")
    chosen: FleetDayRecord
    others: tuple[FleetDayRecord, ...]


def read_autoscale(run_dir: Path) -> AutoscaleRecord | None:
    """Return the replay that the run was judged by last; None if there is none that this version can read."""
    try:
        return AutoscaleRecord.model_validate_json((run_dir / AUTOSCALE_FILE).read_bytes())
    except (OSError, ValidationError):
        return None
