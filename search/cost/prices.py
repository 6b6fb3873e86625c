"""Price files: providers' prices per hour for their instances, with date and source."""

from __future__ import annotations

from datetime import date
from importlib import resources
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, model_validator

from loadgen.errors import BadInput, first_problem
from search.choices import Term
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
