"""Price files, the price of a machine per hour, and from it the cost of an inference."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, model_validator

from loadgen.errors import BadInput, first_problem
from search.choices import TERMS, Term
from search.record import Record


class Instance(Record):
    """A line of a price file: what a provider asks for one kind of machine."""

    provider: str
    instance: str
    region: str
    usd_per_hour: float = Field(gt=0, allow_inf_nan=False, description="On demand.")
    spot_usd_per_hour: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="They change by the hour: the packaged file has none."
    )
    one_year_usd_per_hour: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    three_year_usd_per_hour: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    vcpus: int = Field(ge=1)
    memory_gib: float = Field(gt=0, allow_inf_nan=False)
    gpu: str | None = Field(default=None, description="A word of the name that the driver gives, such as L4.")
    gpu_count: int = Field(default=0, ge=0)
    gpu_memory_gib: float | None = Field(default=None, gt=0, description="Of one GPU.")
    as_of: date
    source: str
    terms_as_of: date | None = Field(default=None, description="Of the prices not on demand; null: as_of.")
    terms_source: str | None = None

    @model_validator(mode="after")
    def _gpu_is_complete(self) -> Instance:
        if (self.gpu is None) != (self.gpu_count == 0):
            raise ValueError("gpu and gpu_count belong together: both or neither")
        return self

    def usd_per_hour_on(self, term: Term) -> float | None:
        """Return the price on those terms; None if the file has none."""
        return {
            "on-demand": self.usd_per_hour,
            "spot": self.spot_usd_per_hour,
            "1-year": self.one_year_usd_per_hour,
            "3-year": self.three_year_usd_per_hour,
        }[term]

    def published(self, term: Term) -> tuple[date, str]:
        """Return the date on which the price was known to be right, and its source."""
        if term == "on-demand":
            return self.as_of, self.source
        return self.terms_as_of or self.as_of, self.terms_source or self.source

    @property
    def title(self) -> str:
        """Name, region and size, such as `AWS g5.xlarge in us-east-1 (4 vCPU, 16 GiB, 1 x A10G)`."""
        gpus = f", {self.gpu_count} x {self.gpu}" if self.gpu else ""
        size = f"{self.vcpus} vCPU, {self.memory_gib:g} GiB{gpus}"
        return f"{self.provider} {self.instance} in {self.region} ({size})"


class PriceFile(Record):
    """A price file, such as the packaged `search/prices.json`."""

    schema_version: Literal[1]
    note: str = ""
    instances: tuple[Instance, ...] = Field(min_length=1)


def read_prices(path: Path | None = None) -> PriceFile:
    """Return the prices in `path`, or the packaged ones. Raises BadInput, which names the wrong key."""
    try:
        source = path if path is not None else resources.files("search") / "prices.json"
        return PriceFile.model_validate_json(source.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"The price file {path} cannot be read: {error}.", "Check --price-file.") from error
    except ValidationError as error:
        raise BadInput(
            f"The price file {path} is not valid: {first_problem(error)}.",
            "Correct that key; the packaged search/prices.json shows the format.",
        ) from error


GIB = 2**30
JOULES_PER_KWH = 3.6e6
SIMILAR_MEMORY = 0.15
"""Systems report less memory than is sold: sizes that differ by at most 15 % count as the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The properties that decide a machine's price. `gpu` is the driver's name for it, None without a GPU."""

    vcpus: int
    memory_bytes: int
    gpu: str | None = None
    gpu_count: int = 0
    gpu_memory_bytes: int | None = None  # of one GPU
    instance_type: str | None = None  # if the machine itself reports it, such as `g5.xlarge`


class PriceRecord(Record):
    """The price of the machine, and its source."""

    usd_per_hour: float = Field(gt=0)
    source: str
    as_of: str
    describes: str
    term: Term | None = Field(
        default=None, description="How the machine is bought; null if the price was given by an option."
    )
    other_terms_usd_per_hour: dict[Term, Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict,
        description="Prices of the same machine bought otherwise, if the price file has them.",
    )


def price_for(
    machine: Machine,
    *,
    price_file: Path | None = None,
    per_hour: float | None = None,
    term: Term = "on-demand",
) -> PriceRecord:
    """Return the price of `machine`: the one given per hour, or the best match in the price file.

    A machine that reports its own instance type gets the price of that; one with GPUs that of the cheapest with
    the same GPUs; another that of the cheapest of its size. Without a match, the price is scaled per GPU or per
    vCPU from the nearest instance, as `describes` states. Raises BadInput for a bad file, a GPU
    that is not in the file, and a machine without a price on these terms.
    """
    if per_hour is not None:
        return PriceRecord(
            usd_per_hour=per_hour, source="--price-per-hour", as_of="", describes="this machine, as given"
        )
    instances = read_prices(price_file).instances
    for instance in instances:
        if machine.instance_type == instance.instance:
            return _on_terms(term, [instance], instance.title)[0].price(term)
    if machine.gpu is not None:
        return _by_gpu(machine, instances, term)
    return _by_size(machine, instances, term)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offer:
    """An instance that is sold on the wanted terms."""

    instance: Instance
    usd_per_hour: float

    def price(self, term: Term, *, factor: float = 1.0, note: str = "") -> PriceRecord:
        as_of, source = self.instance.published(term)
        others = {other: self.instance.usd_per_hour_on(other) for other in TERMS if other != term}
        return PriceRecord(
            usd_per_hour=self.usd_per_hour * factor,
            source=source,
            as_of=as_of.isoformat(),
            describes=f"{note}{self.instance.title}, {_TERM_WORDS[term]}",
            term=term,
            other_terms_usd_per_hour={other: usd * factor for other, usd in others.items() if usd is not None},
        )


_TERM_WORDS: dict[Term, str] = {
    "on-demand": "on demand",
    "spot": "spot",
    "1-year": "committed for a year",
    "3-year": "committed for three years",
}


def _on_terms(term: Term, instances: Sequence[Instance], what: str) -> list[_Offer]:
    """Return the instances with a price on these terms. Raises BadInput if none has one."""
    prices = ((instance, instance.usd_per_hour_on(term)) for instance in instances)
    offers = [_Offer(instance=instance, usd_per_hour=usd) for instance, usd in prices if usd is not None]
    if not offers:
        raise BadInput(
            f"The price file has no {term} price for {what}.",
            "Say what it costs: --price-per-hour USD, or a --price-file that has it.",
        )
    return offers


def _by_gpu(machine: Machine, instances: Sequence[Instance], term: Term) -> PriceRecord:
    assert machine.gpu is not None
    words = set(re.split(r"[\s-]+", machine.gpu.upper()))
    same = [entry for entry in instances if entry.gpu and entry.gpu.upper() in words and _gpu_fits(machine, entry)]
    if not same:
        known = sorted({entry.gpu for entry in instances if entry.gpu})
        raise BadInput(
            f"There is no price for a machine with {machine.gpu} (known: {', '.join(known) or 'no GPU at all'}).",
            "Say what it costs: --price-per-hour USD",
        )
    offers = _on_terms(term, same, f"a machine with {machine.gpu}")
    exact = [offer for offer in offers if offer.instance.gpu_count == machine.gpu_count]
    if exact:
        cheapest = min(exact, key=lambda offer: offer.usd_per_hour)
        return cheapest.price(term, note="cheapest with this GPU: ")
    nearest = min(offers, key=lambda offer: offer.usd_per_hour / offer.instance.gpu_count)
    note = f"{machine.gpu_count} x {nearest.instance.gpu}, scaled by the number of GPUs from "
    return nearest.price(term, factor=machine.gpu_count / nearest.instance.gpu_count, note=note)


def _gpu_fits(machine: Machine, entry: Instance) -> bool:
    """True if the memory of the GPUs is similar: an A100 has 40 or 80 GB."""
    if machine.gpu_memory_bytes is None or entry.gpu_memory_gib is None:
        return True
    return _distance(machine.gpu_memory_bytes / GIB, entry.gpu_memory_gib) <= SIMILAR_MEMORY


def _by_size(machine: Machine, instances: Sequence[Instance], term: Term) -> PriceRecord:
    memory_gib = machine.memory_bytes / GIB
    without_gpu = [entry for entry in instances if entry.gpu is None]
    if not without_gpu:
        raise BadInput("The price file has no machine without a GPU.", "Give --price-per-hour USD")
    offers = _on_terms(term, without_gpu, "a machine without a GPU")
    exact = [
        offer
        for offer in offers
        if offer.instance.vcpus == machine.vcpus
        and _distance(memory_gib, offer.instance.memory_gib) <= SIMILAR_MEMORY
    ]
    if exact:
        cheapest = min(exact, key=lambda offer: offer.usd_per_hour)
        return cheapest.price(term, note="cheapest of this size: ")

    def unlikeness(offer: _Offer) -> tuple[float, float, float]:
        vcpus = offer.instance.vcpus
        return (
            abs(math.log(memory_gib / machine.vcpus * vcpus / offer.instance.memory_gib)),
            abs(math.log(machine.vcpus / vcpus)),
            offer.usd_per_hour / vcpus,
        )

    nearest = min(offers, key=unlikeness)
    how = "nearest is" if nearest.instance.vcpus == machine.vcpus else "scaled per vCPU from"
    note = f"{machine.vcpus} vCPU and {memory_gib:.0f} GiB match no known instance; {how} "
    return nearest.price(term, factor=machine.vcpus / nearest.instance.vcpus, note=note)


def _distance(size: float, other: float) -> float:
    return abs(size - other) / other


def cost_per_million_inferences_usd(price_usd_per_hour: float, rate_per_s: float) -> float:
    """Return the cost of 1,000,000 inferences on one machine, kept busy at `rate_per_s`. Raises ValueError."""
    if not 0 < rate_per_s < math.inf:
        raise ValueError(f"a rate of {rate_per_s}/s has no cost per inference")
    return price_usd_per_hour / (rate_per_s * 3600) * 1e6


def replicas(rate_to_serve_per_s: float, certified_rate_per_s: float, *, headroom: float = 0.0) -> int:
    """Return how many machines serve a rate; `headroom` 0.2 leaves a fifth of every machine's rate unused.

    Raises ValueError if a rate is not above zero or the headroom leaves nothing.
    """
    usable_per_s = certified_rate_per_s * (1 - headroom)
    if not rate_to_serve_per_s > 0 or not 0 < usable_per_s < math.inf or headroom < 0:
        raise ValueError(f"{rate_to_serve_per_s}/s cannot be served at {certified_rate_per_s}/s, {headroom=}")
    return max(1, math.ceil(rate_to_serve_per_s / usable_per_s - 1e-9))  # 3.3 / 1.1 is three machines, not four


def energy_kwh_per_million_inferences(power_w: float, rate_per_s: float) -> float:
    """Return the kWh of 1,000,000 inferences at a mean power in watts and `rate_per_s`. Raises ValueError."""
    if not 0 < rate_per_s < math.inf or not 0 <= power_w < math.inf:
        raise ValueError(f"{power_w} W at {rate_per_s}/s say nothing about energy per inference")
    return power_w / rate_per_s * 1e6 / JOULES_PER_KWH
