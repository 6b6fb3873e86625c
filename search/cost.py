"""What a machine costs per hour, and what that makes an inference cost."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import date
from importlib import resources
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

GIB = 2**30
SIMILAR_MEMORY = 0.15
"""Systems report less memory than is sold: what differs by no more than this share is the same size."""


class PriceError(Exception):
    """No price can be told. Two lines: what is wrong with which value, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What decides a machine's price. `gpu` is the name that the driver gives, None without a GPU."""

    vcpus: int
    memory_bytes: int
    gpu: str | None = None
    gpu_count: int = 0
    gpu_memory_bytes: int | None = None  # of one GPU
    instance_type: str | None = None  # where the machine itself says it, such as `g5.xlarge`


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """A price per hour and who says so."""

    usd_per_hour: float
    source: str  # a URL, or the option it came from
    as_of: str  # ISO date; "" for a price that the user gave
    describes: str  # what the price is for, and how it was derived where it is not a list price


class Instance(BaseModel):
    """A line of a price file: what a provider asks for one kind of machine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    provider: str
    instance: str
    region: str
    usd_per_hour: float = Field(gt=0, allow_inf_nan=False)
    vcpus: int = Field(ge=1)
    memory_gib: float = Field(gt=0, allow_inf_nan=False)
    gpu: str | None = Field(default=None, description="A word of the name that the driver gives, such as L4.")
    gpu_count: int = Field(default=0, ge=0)
    gpu_memory_gib: float | None = Field(default=None, gt=0, description="Of one GPU.")
    as_of: date
    source: str

    @model_validator(mode="after")
    def _gpu_is_complete(self) -> Instance:
        if (self.gpu is None) != (self.gpu_count == 0):
            raise ValueError("gpu and gpu_count belong together: both or neither")
        return self

    @property
    def title(self) -> str:
        """`AWS g5.xlarge in us-east-1 (4 vCPU, 16 GiB, 1 x A10G), on demand`."""
        gpus = f", {self.gpu_count} x {self.gpu}" if self.gpu else ""
        size = f"{self.vcpus} vCPU, {self.memory_gib:g} GiB{gpus}"
        return f"{self.provider} {self.instance} in {self.region} ({size}), on demand"


class PriceFile(BaseModel):
    """A price file, such as the packaged `prices.json` beside this module."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1]
    note: str = ""
    instances: tuple[Instance, ...] = Field(min_length=1)


def price_for(machine: Machine, *, price_file: Path | None = None, per_hour: float | None = None) -> Price:
    """The price of `machine`: the one given per hour, or the best match in the price file.

    A machine that names its own instance type gets that; one with GPUs the cheapest with the same GPUs; another
    the cheapest of its size. What matches nothing is scaled per GPU or per vCPU from what comes nearest, and
    `describes` says so. Raises PriceError for a bad price, a bad file, and a GPU that the file does not know.
    """
    if per_hour is not None:
        if not 0 < per_hour < math.inf:
            raise PriceError(
                f"A price of {per_hour} USD per hour is not possible.\nGive --price-per-hour above 0."
            )
        return Price(
            usd_per_hour=per_hour, source="--price-per-hour", as_of="", describes="this machine, as given"
        )
    instances = read_prices(price_file).instances
    for instance in instances:
        if machine.instance_type == instance.instance:
            return _list_price(instance)
    return _by_gpu(machine, instances) if machine.gpu is not None else _by_size(machine, instances)


def read_prices(path: Path | None = None) -> PriceFile:
    """The prices in `path`, or the packaged ones. Raises PriceError, naming the key that is wrong."""
    try:
        source = path if path is not None else resources.files("search") / "prices.json"
        return PriceFile.model_validate_json(source.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise PriceError(f"The price file {path} cannot be read: {error}.\nCheck --price-file.") from error
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "the file"
        raise PriceError(
            f"The price file {path} is not valid: {key}: {first['msg']}.\n"
            "Correct that key; the packaged search/prices.json shows the format."
        ) from error


def _list_price(instance: Instance, *, factor: float = 1.0, note: str = "") -> Price:
    return Price(
        usd_per_hour=instance.usd_per_hour * factor,
        source=instance.source,
        as_of=instance.as_of.isoformat(),
        describes=f"{note}{instance.title}",
    )


def _by_gpu(machine: Machine, instances: Sequence[Instance]) -> Price:
    assert machine.gpu is not None
    words = set(re.split(r"[\s-]+", machine.gpu.upper()))
    same = [entry for entry in instances if entry.gpu and entry.gpu.upper() in words and _gpu_fits(machine, entry)]
    if not same:
        known = sorted({entry.gpu for entry in instances if entry.gpu})
        raise PriceError(
            f"There is no price for a machine with {machine.gpu} (known: {', '.join(known) or 'no GPU at all'}).\n"
            "Say what it costs: --price-per-hour USD"
        )
    exact = [entry for entry in same if entry.gpu_count == machine.gpu_count]
    if exact:
        return _list_price(min(exact, key=lambda entry: entry.usd_per_hour), note="cheapest with this GPU: ")
    nearest = min(same, key=lambda entry: entry.usd_per_hour / entry.gpu_count)
    note = f"{machine.gpu_count} x {nearest.gpu}, scaled by the number of GPUs from "
    return _list_price(nearest, factor=machine.gpu_count / nearest.gpu_count, note=note)


def _gpu_fits(machine: Machine, entry: Instance) -> bool:
    """GPUs of one name come with different memory: an A100 has 40 or 80 GB."""
    if machine.gpu_memory_bytes is None or entry.gpu_memory_gib is None:
        return True
    return _distance(machine.gpu_memory_bytes / GIB, entry.gpu_memory_gib) <= SIMILAR_MEMORY


def _by_size(machine: Machine, instances: Sequence[Instance]) -> Price:
    memory_gib = machine.memory_bytes / GIB
    without_gpu = [entry for entry in instances if entry.gpu is None]
    if not without_gpu:
        raise PriceError("The price file has no machine without a GPU.\nGive --price-per-hour USD")
    exact = [
        entry
        for entry in without_gpu
        if entry.vcpus == machine.vcpus and _distance(memory_gib, entry.memory_gib) <= SIMILAR_MEMORY
    ]
    if exact:
        return _list_price(min(exact, key=lambda entry: entry.usd_per_hour), note="cheapest of this size: ")

    def unlikeness(entry: Instance) -> tuple[float, float, float]:
        memory_per_vcpu = entry.memory_gib / entry.vcpus
        return (
            abs(math.log(memory_gib / machine.vcpus / memory_per_vcpu)),
            abs(math.log(machine.vcpus / entry.vcpus)),
            entry.usd_per_hour / entry.vcpus,
        )

    nearest = min(without_gpu, key=unlikeness)
    how = "nearest is" if nearest.vcpus == machine.vcpus else "scaled per vCPU from"
    note = f"{machine.vcpus} vCPU and {memory_gib:.0f} GiB match no known instance; {how} "
    return _list_price(nearest, factor=machine.vcpus / nearest.vcpus, note=note)


def _distance(size: float, other: float) -> float:
    return abs(size - other) / other


def cost_per_million_inferences_usd(price_usd_per_hour: float, rate_per_s: float) -> float:
    """What 1,000,000 inferences cost on one machine that is kept busy at `rate_per_s`. Raises ValueError."""
    if not 0 < rate_per_s < math.inf:
        raise ValueError(f"a rate of {rate_per_s}/s has no cost per inference")
    return price_usd_per_hour / (rate_per_s * 3600) * 1e6


def replicas(rate_to_serve_per_s: float, certified_rate_per_s: float, *, headroom: float = 0.0) -> int:
    """How many machines serve a rate; `headroom` 0.2 leaves a fifth of every machine's rate unused.

    Raises ValueError where a rate is not above zero or the headroom leaves nothing.
    """
    usable_per_s = certified_rate_per_s * (1 - headroom)
    if not rate_to_serve_per_s > 0 or not 0 < usable_per_s < math.inf or headroom < 0:
        raise ValueError(f"{rate_to_serve_per_s}/s cannot be served at {certified_rate_per_s}/s, {headroom=}")
    return max(1, math.ceil(rate_to_serve_per_s / usable_per_s - 1e-9))  # 3.3 / 1.1 is three machines, not four
