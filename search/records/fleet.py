"""The output of `optimize fleet --json` as pydantic models."""

from __future__ import annotations

from pydantic import Field

from search.choices import Term
from search.record import Record


class OfferRecord(Record):
    """A run's machine with one way to buy it. Lists of `replicas` have the order of the offers."""

    run: str
    certified_rate_per_s: float = Field(description="Certified rate of one replica, before headroom.")
    usd_per_hour: float
    term: Term | None = Field(description="null if the price was given by an option.")
    committed: bool = Field(description="True if it is paid for 24 hours a day.")
    price_source: str
    price_as_of: str
    describes: str
    energy_kwh_per_million_inferences: float | None


class HourRecord(Record):
    """One hour: its highest rate, the number of replicas per offer, and their cost."""

    hour: int
    rate_per_s: float
    replicas: tuple[int, ...]
    usd: float


class AlternativeRecord(Record):
    """Another plan for the same day; null if it cannot serve it within the given limits."""

    plan: str
    usd_per_day: float | None
    most_replicas: tuple[int, ...] | None = Field(description="Most replicas per offer at any hour.")
    dearer_by: float | None = Field(description="Extra cost over the cheapest plan: 0.25 for a quarter more.")


class FleetRecord(Record):
    """The cheapest plan for a day, and the cost of the alternatives."""

    rates_per_s: tuple[float, ...] = Field(description="The highest rate of each hour.")
    headroom: float = Field(description="Share of every replica's certified rate that is left unused.")
    limit_ms: float
    quantile: float
    offers: tuple[OfferRecord, ...]
    hours: tuple[HourRecord, ...]
    usd_per_day: float
    alternatives: tuple[AlternativeRecord, ...]
