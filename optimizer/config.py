"""Everything that decides a run, checked once and written to the run directory for `--resume`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from loadgen.addresses import plain_address
from loadgen.files import write_atomically
from loadgen.plan import SharedMemory
from loadgen.user_errors import first_problem
from model_repo.kept_files import read_kept
from model_repo.spec import Protocol
from optimizer.errors import BadInput
from optimizer.model_source import FACTORY
from optimizer.precisions import CalibrationMethod, IoPrecision, Precision
from optimizer.thresholds import AccuracyRule
from search.objective import Objective
from search.prices import Term
from search.records import LimitRecord, ObjectiveName, Slo

FactoryName = Annotated[str, Field(pattern=rf"^{FACTORY}$")]
"""`package.module:callable`, which returns a PyTorch model with example inputs."""

ServerKind = Literal["embedded", "local", "docker", "remote"]


class OptimizeConfig(BaseModel):
    """The arguments of one run. Durations are in seconds or ms as named, rates in requests per second."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    model: FactoryName | Path
    limit_ms: float = Field(gt=0)
    quantile: float = Field(default=0.99, ge=0.5, lt=1)
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    also: tuple[LimitRecord, ...] = ()  # further limits, of other quantiles
    max_memory_bytes: int | None = Field(default=None, gt=0)
    shapes: dict[str, tuple[int, ...]] = Field(default_factory=dict)
    output: Path
    server: ServerKind = "embedded"
    server_url: str | None = None
    server_repository: Path | None = None
    server_port: int | None = Field(default=None, ge=1, le=65535)
    docker_image: str | None = None
    input_data: Path | None = None
    objective: ObjectiveName = "cost"
    pareto: bool = False
    arrivals: str = "poisson"
    trace: Path | None = None  # instead of arrivals
    client_batch: int = Field(default=1, ge=1)
    protocol: Protocol = "http"
    shared_memory: SharedMemory = "none"
    price_per_hour_usd: float | None = Field(default=None, gt=0)
    price_file: Path | None = None
    price_term: Term = "on-demand"
    rate_to_serve_per_s: float | None = Field(default=None, gt=0)
    peak_rate_per_s: float | None = Field(default=None, gt=0)
    time_budget_s: float = Field(default=600.0, gt=0)
    most_send_lag_ms: float | None = Field(default=None, gt=0)  # None: 1 ms, or 5 % of the limit
    storage: str | None = None
    study: str | None = None  # None: named after the directory
    gpu: str | None = None  # part of the GPUs' name
    workers: str = "1"  # processes that measure on this machine, or `auto`
    cache_dir: Path | None = None  # None: in the user's cache folder
    precisions: tuple[Precision, ...] | None = None  # None: what this machine runs without calibration data
    calibration_data: Path | None = None
    calibration_method: CalibrationMethod = "percentile"
    accuracy: AccuracyRule = AccuracyRule()
    io_precision: IoPrecision = "keep"
    seed: int = 0

    @field_validator("*", mode="after")
    @classmethod
    def _names_files(cls, value: object) -> object:
        if isinstance(value, str | Path) and "\0" in str(value):
            raise ValueError("must not hold the character NUL")
        return value

    @property
    def slo(self) -> Slo:
        """The promise that the run is to find."""
        return Slo(
            limit_ms=self.limit_ms,
            quantile=self.quantile,
            confidence=self.confidence,
            also=self.also,
            max_memory_bytes=self.max_memory_bytes,
        )

    @property
    def aim(self) -> Objective:
        """What makes one configuration better than another."""
        rate = self.rate_to_serve_per_s if self.objective == "latency" else None
        return Objective(name=self.objective, rate_per_s=rate, quantile=self.quantile)


RUN_FILE = "run.json"


def save_config(config: OptimizeConfig, directory: Path) -> None:
    """Write `run.json`, from which `--resume` continues; see `public_config` for what stays out."""
    write_atomically(directory / RUN_FILE, public_config(config).model_dump_json(indent=2) + "\n")


def public_config(config: OptimizeConfig) -> OptimizeConfig:
    """The configuration without secrets: no storage URL, and a server's scheme, host, port and path alone."""
    url = config.server_url and plain_address(config.server_url)
    return config.model_copy(update={"storage": None, "server_url": url})


def saved_config(directory: Path) -> OptimizeConfig:
    """The arguments of the run in `directory`. Raises BadInput where there is none or it cannot be read."""
    path = directory / RUN_FILE
    if not path.is_file():
        raise BadInput(
            f"{directory} holds no run: there is no {RUN_FILE} in it.",
            "Give --resume the directory that an earlier run named as its output.",
        )
    try:
        config = OptimizeConfig.model_validate_json(read_kept(directory, RUN_FILE))
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.", "Check it and its permissions.") from error
    except ValidationError as error:
        raise BadInput(
            f"{path} is not a run's configuration: {first_problem(error)}.",
            "It was changed or written by another version; start a new run.",
        ) from error
    return config.model_copy(update={"output": directory})
