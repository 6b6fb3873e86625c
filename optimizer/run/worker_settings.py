"""The settings that a worker takes from its study. Code, images and files come only from its own command line."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from loadgen.errors import BadInput, first_problem
from loadgen.files import sha256_of
from loadgen.spec.plan import SharedMemory
from model_repo.server.options import DEFAULT_IMAGE
from model_repo.spec import Protocol, ServerKind
from optimizer.config import OptimizeConfig
from optimizer.precision.names import CalibrationMethod, IoPrecision, Precision
from optimizer.run.workload_inputs import TRACE_FILE
from search.choices import LARGEST_BATCH
from search.record import Sha256
from search.study.tasks import Line, WorkerJob

MAX_ELEMENTS = 2**28
"""An input for one request has at most this many elements: 1 GiB of fp32."""

Name = Annotated[str, Field(min_length=1, max_length=512)]
Shape = Annotated[tuple[Annotated[int, Field(ge=1, le=MAX_ELEMENTS)], ...], Field(max_length=32)]


class WorkerSettings(BaseModel):
    """How to measure, as an order has it. Files are checksums here, and the server is only compared."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    shapes: dict[Name, Shape] = Field(default_factory=dict, max_length=256)
    arrivals: str = Field(default="poisson", pattern=r"^(poisson|constant|gamma:cv=[0-9.]{1,16})$")
    client_batch: int = Field(default=1, ge=1, le=LARGEST_BATCH)
    protocol: Protocol = "http"
    shared_memory: SharedMemory = "none"
    most_send_lag_ms: float | None = Field(default=None, gt=0, le=1e8)
    precisions: tuple[Precision, ...] = Field(min_length=1, max_length=16)
    calibration_method: CalibrationMethod = "percentile"
    io_precision: IoPrecision = "keep"
    server: ServerKind = "embedded"
    docker_image: Line | None = None  # the image of a docker server; None: there is no container
    input_data_sha256: Sha256 | None = None
    calibration_data_sha256: Sha256 | None = None
    trace_sha256: Sha256 | None = None

    @field_validator("shapes")
    @classmethod
    def _not_too_large(cls, shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        if any(math.prod(shape) > MAX_ELEMENTS for shape in shapes.values()):
            raise ValueError(f"an input has more than {MAX_ELEMENTS:,} elements")
        return shapes


SAME = ("client_batch", "protocol", "shared_memory", "most_send_lag_ms", "calibration_method", "io_precision")
"""Settings that have the same name in the configuration."""


def settings_of(config: OptimizeConfig, precisions: Iterable[str]) -> WorkerSettings:
    """Return the settings for workers, from a run's configuration and the precisions that compete.

    Raises pydantic's ValidationError.
    """
    return WorkerSettings.model_validate(
        {
            **{name: getattr(config, name) for name in SAME},
            "shapes": config.shapes,
            "arrivals": "".join(config.arrivals.split()),
            "precisions": tuple(dict.fromkeys(precisions)),
            "server": config.server,
            "docker_image": image_of(config.server, config.docker_image),
            "input_data_sha256": checksum(config.input_data),
            "calibration_data_sha256": checksum(config.calibration_data),
            "trace_sha256": None if config.trace is None else checksum(config.output / TRACE_FILE),
        }
    )


def settings_from(order: WorkerJob, study: str) -> WorkerSettings:
    """Return the settings of a job, checked. Raises BadInput."""
    try:
        return WorkerSettings.model_validate(order.settings)
    except ValidationError as error:
        raise BadInput(
            f"The study {study} holds a setting that no search has: {first_problem(error)}.",
            "Start the search again with another --study NAME; this one may have been changed by another program.",
        ) from error


def worker_config(order: WorkerJob, settings: WorkerSettings, own: OptimizeConfig) -> OptimizeConfig:
    """Return the worker's own configuration with the SLO, the objective, the seed and the settings of the job."""
    slo = order.slo
    return replace(
        own,
        **{name: getattr(settings, name) for name in SAME},
        shapes=settings.shapes,
        arrivals=settings.arrivals,
        precisions=settings.precisions,
        limits=slo.limits,
        confidence=slo.confidence,
        max_memory_bytes=slo.max_memory_bytes,
        objective=order.objective.name,
        rate_to_serve_per_s=order.objective.rate_per_s,
        seed=order.seed,
    )


def check_same(settings: WorkerSettings, own: OptimizeConfig, study: str) -> None:
    """Raise BadInput if this worker's server, image or files are not the study's, or if the server is remote."""
    if settings.server == "remote":
        raise BadInput(
            f"The study {study} measures on a remote server, which workers would share.",
            "Start the search with --server embedded, local or docker: each worker then has a server of its own.",
        )
    if settings.server != own.server:
        raise BadInput(
            f"The study {study} measures on a server of the kind {settings.server}, and this worker would on "
            f"{own.server}.",
            f"Add --server {settings.server} if this machine is to start one.",
        )
    if settings.docker_image != image_of(own.server, own.docker_image):
        raise BadInput(
            f"The study {study} measures with another image than {image_of(own.server, own.docker_image)}.",
            "Give the --docker-image that the search was given.",
        )
    for option, path, wanted in (
        ("--input-data", own.input_data, settings.input_data_sha256),
        ("--calibration-data", own.calibration_data, settings.calibration_data_sha256),
        ("--trace", own.trace, settings.trace_sha256),
    ):
        _check_file(option, path, wanted, study)


def _check_file(option: str, path: Path | None, wanted: str | None, study: str) -> None:
    if path is None and wanted is not None:
        raise BadInput(
            f"The search of the study {study} was given {option}, and this worker was not.",
            f"Add {option} with the same file; no file names are taken from the storage.",
        )
    if path is not None and wanted is None:
        raise BadInput(f"The search of the study {study} was given no {option}.", f"Leave {option} out.")
    if path is not None and not path.exists():
        raise BadInput(f"{option} {path} does not exist.", "Check the path.")
    if checksum(path) != wanted:
        raise BadInput(
            f"{option} {path} is not the file of the study {study}: its checksum differs.",
            f"Give the same file with {option}.",
        )


def image_of(server: ServerKind, image: str | None) -> str | None:
    """Return the image of a docker server; None for other servers."""
    return (image or DEFAULT_IMAGE) if server == "docker" else None


def checksum(path: Path | None) -> str | None:
    """Return the SHA-256 of a file, or of a folder's files and their names; None for no path. Raises OSError."""
    if path is None:
        return None
    if not path.is_dir():
        return sha256_of(path)
    parts = (f"{part.name}\0{sha256_of(part)}\n" for part in path.iterdir() if part.is_file())
    return hashlib.sha256("".join(sorted(parts)).encode()).hexdigest()
