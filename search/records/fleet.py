"""The output of `optimize fleet --json` as pydantic models."""

from __future__ import annotations

from pydantic import Field

from search.choices import Term
from search.record import Record


class OfferRecord(Record):
    """As many machines of one run as the rate needs, and what they cost."""

    run: str
    certified_rate_per_s: float = Field(description="Certified rate of one replica, before headroom.")
    provisional: bool = Field(default=False, description="True if that rate was met, and is not certified.")
    replicas: int
    usd_per_replica_hour: float
    usd_per_hour: float = Field(description="Of all replicas.")
    term: Term | None = Field(description="null if the price was given by an option.")
    price_source: str
    price_as_of: str
    describes: str
    energy_kwh_per_million_inferences: float | None


class FleetRecord(Record):
    """What a rate costs on the machine of each run, the cheapest first."""

    rate_per_s: float
    headroom: float = Field(description="Share of every replica's certified rate that is left unused.")
    limit_ms: float
    quantile: float
    offers: tuple[OfferRecord, ...]
