"""What `optimize fleet --json` prints, as pydantic models."""

from __future__ import annotations

from pydantic import Field

from search.prices import Term
from search.record import Record


class OfferRecord(Record):
    """A run's machine on one way to buy it; `replicas` elsewhere count in the order of these."""

    run: str
    certified_rate_per_s: float = Field(description="Of one replica, before headroom.")
    usd_per_hour: float
    term: Term | None = Field(description="null: a price that was given.")
    committed: bool = Field(description="Paid around the clock.")
    price_source: str
    price_as_of: str
    describes: str
    energy_kwh_per_million_inferences: float | None


class HourRecord(Record):
    """One hour: its highest rate, how many replicas of each offer run, and what they cost."""

    hour: int
    rate_per_s: float
    replicas: tuple[int, ...]
    usd: float


class AlternativeRecord(Record):
    """Another way to serve the same day; null where it cannot, within the limits given."""

    plan: str
    usd_per_day: float | None
    most_replicas: tuple[int, ...] | None = Field(description="Of each offer, at any hour.")
    dearer_by: float | None = Field(description="0.25: a quarter more than the cheapest.")


class FleetRecord(Record):
    """The cheapest plan for a day, and what the alternatives cost."""

    rates_per_s: tuple[float, ...] = Field(description="The highest rate of each hour.")
    headroom: float = Field(description="Share of every replica's certified rate that is left unused.")
    limit_ms: float
    quantile: float
    offers: tuple[OfferRecord, ...]
    hours: tuple[HourRecord, ...]
    usd_per_day: float
    alternatives: tuple[AlternativeRecord, ...]
