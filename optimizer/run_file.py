"""Read and write `run.json`, from which `--resume` continues; derive a run's SLO, objective and remote server."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from loadgen.errors import BadInput, first_problem
from loadgen.files import write_atomically
from loadgen.spec.addresses import parsed_address, plain_address, shown_address
from loadgen.spec.target import headers_from_options
from model_repo.spec import Endpoint
from optimizer.config import OptimizeConfig
from optimizer.model_source import saved_source
from search.records.run_files import RUN_FILE
from search.records.slo import Slo
from search.trials.objective import OBJECTIVES, Objective

CONFIG = TypeAdapter(OptimizeConfig)


def save_config(config: OptimizeConfig, directory: Path) -> None:
    """Write `run.json`, without secrets: no storage URL, and a server's URL without user and query."""
    url = config.server_url and plain_address(config.server_url)
    text = CONFIG.dump_json(replace(config, storage=None, server_url=url), indent=2).decode()
    write_atomically(directory / RUN_FILE, text + "\n")


def saved_config(directory: Path) -> OptimizeConfig:
    """Return the configuration of the run in `directory`. Raises BadInput if it is missing or not readable."""
    path = directory / RUN_FILE
    if not path.is_file():
        raise BadInput(
            f"{directory} holds no run: there is no {RUN_FILE} in it.",
            "Give --resume the directory that an earlier run named as its output.",
        )
    try:
        config = CONFIG.validate_json(path.read_bytes())
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.", "Check it and its permissions.") from error
    except (BadInput, ValidationError) as error:
        problem = error.what.removesuffix(".") if isinstance(error, BadInput) else first_problem(error)
        raise BadInput(
            f"{path} is not a run's configuration: {problem}.",
            "It was changed or written by another version; start a new run.",
        ) from error
    own = config.repository is not None  # then the model is a name
    return replace(config, model=str(config.model) if own else saved_source(str(config.model)), output=directory)


def slo_of(config: OptimizeConfig) -> Slo:
    """Return the SLO that the run is to meet."""
    return Slo(
        limits=config.limits,
        colocated=tuple(limit for one in config.with_models for limit in one.limits),
        confidence=config.confidence,
        max_memory_bytes=config.max_memory_bytes,
    )


def objective_of(config: OptimizeConfig) -> Objective:
    """Return the objective that makes one configuration better than another."""
    kind = OBJECTIVES[config.objective]
    rate = config.rate_to_serve_per_s if "rate" in kind.needs else None
    return kind(rate_per_s=rate, quantile=config.limits[0].quantile)


def remote_endpoint(config: OptimizeConfig) -> Endpoint | None:
    """Return the endpoint of `--server-url`; None for servers that we start ourselves. Raises BadInput.

    Triton's other ports are assumed to follow the HTTP port, as they do by default (8000, 8001, 8002).
    """
    if config.server != "remote" or config.server_url is None:
        return None
    return endpoint_of(config.server_url, config.header_env)


def endpoint_of(server_url: str, header_env: tuple[str, ...] = ()) -> Endpoint:
    """Return the endpoint of an address, with the headers whose values are in the environment. Raises BadInput."""
    parts = parsed_address(server_url)
    if parts is None or parts.scheme != "http" or not parts.hostname or parts.path.strip("/"):
        raise BadInput(
            f"--server-url {shown_address(server_url)} is not the address of an HTTP server.",
            "Write http://HOST:PORT",
        )
    port = parts.port or 8000
    return Endpoint(
        host=parts.hostname,
        http_port=port,
        grpc_port=port + 1,
        metrics_port=port + 2,
        credentials=headers_from_options((), header_env, os.environ),
    )
