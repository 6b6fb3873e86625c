"""Command-line arguments into a run's configuration; every problem is an error that names its option."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from loadgen.units import noted_duration_ms, shape_from_text, shared_memory_from_text
from optimizer.config import OptimizeConfig, ServerKind
from optimizer.demand import demand_fields
from optimizer.errors import BadInput
from optimizer.limits import latency_limits, memory_bytes
from optimizer.model_source import is_file, source_from_text, stem_of
from optimizer.options import SERVER_URL_VARIABLE, STORAGE_VARIABLE
from optimizer.precisions import CalibrationMethod, IoPrecision, precisions_from_text
from optimizer.thresholds import accuracy_rule
from search.prices import TERMS
from search.records import ObjectiveName
from search.secrets import has_password, is_storage_url, shown_storage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typer import Context

    from loadgen.plan import SharedMemory


def config_from_arguments(
    *,
    model: str | None,
    p99: str | None,
    shapes: list[str],
    input_data: Path | None,
    confidence: float,
    server: str,
    server_url: str | None,
    server_repository: Path | None,
    server_port: int | None,
    docker_image: str | None,
    price_per_hour: float | None,
    price_file: Path | None,
    price_term: str,
    rate: float | None,
    peak_rate: float | None,
    output: Path | None,
    cache_dir: Path | None,
    time_budget: str,
    storage: str | None,
    seed: int,
    study: str | None = None,
    gpu: str | None = None,
    workers: str = "1",
    precisions: str | None = None,
    calibration_data: Path | None = None,
    accuracy: str = "strict",
    calibration_method: str = "percentile",
    io_precision: str = "keep",
    max_send_lag: str | None = None,
    arrivals: str | None = None,
    trace: Path | None = None,
    client_batch: int = 1,
    protocol: str = "http",
    shared_memory: str = "none",
    further_limits: Mapping[str, str | None] | None = None,
    max_memory: str | None = None,
    objective: str = "cost",
    pareto: bool = False,
) -> tuple[OptimizeConfig, list[str]]:
    """The configuration, and notes on what was assumed. Raises BadInput."""
    if model is None:
        raise BadInput("No model was given.", "Add --model FILE.onnx")
    source = source_from_text(model)
    (first, *also), notes = latency_limits({"p99": p99, **(further_limits or {})})
    budget_ms = noted_duration_ms(time_budget, option="--time-budget", default_unit="s", note=notes.append)
    most_lag_ms = None
    if max_send_lag is not None:
        most_lag_ms = noted_duration_ms(
            max_send_lag, option="--max-send-lag", default_unit="ms", note=notes.append
        )
    _check_choices(server, server_url, server_repository, max_memory)
    check_money(price_per_hour, rate, peak_rate)
    _check_objective(objective, rate)
    if calibration_method not in get_args(CalibrationMethod):
        known = " or ".join(get_args(CalibrationMethod))
        raise BadInput(f"--calibration-method {calibration_method} is unknown.", f"Give {known}.")
    if io_precision not in get_args(IoPrecision):
        raise BadInput(f"--io-precision {io_precision} is unknown.", f"Give {' or '.join(get_args(IoPrecision))}.")
    check_range("--confidence", confidence, 0.8, 0.999)
    check_range("--server-port", server_port, 1, 65535)
    check_range("--seed", seed, 0, 2**31)
    check_term(price_term)
    for option, path in (("--input-data", input_data), ("--price-file", price_file), ("--trace", trace)):
        check_file(option, path)
    config = OptimizeConfig.model_validate(
        {
            "model": source,
            "limit_ms": first.limit_ms,
            "quantile": first.quantile,
            "also": tuple(also),
            "max_memory_bytes": max_memory and memory_bytes(max_memory, option="--max-memory"),
            "confidence": confidence,
            "shapes": dict(shape_from_text(text) for text in shapes),
            "output": (output or _default_output(source)).absolute(),
            "server": server,
            "server_url": server_url,
            "server_repository": server_repository and server_repository.absolute(),
            "server_port": server_port,
            "docker_image": docker_image,
            "input_data": input_data and input_data.absolute(),
            "objective": objective,
            "pareto": pareto,
            "price_per_hour_usd": price_per_hour,
            "price_file": price_file and price_file.absolute(),
            "price_term": price_term,
            "rate_to_serve_per_s": rate,
            "cache_dir": cache_dir and cache_dir.absolute(),
            "peak_rate_per_s": peak_rate,
            "time_budget_s": budget_ms / 1000,
            "most_send_lag_ms": most_lag_ms,
            "storage": storage,
            "study": study,
            "gpu": gpu,
            "workers": workers,
            "seed": seed,
            "precisions": precisions and precisions_from_text(precisions),
            "calibration_data": calibration_data and calibration_data.absolute(),
            "accuracy": accuracy_rule(accuracy),
            "calibration_method": calibration_method,
            "io_precision": io_precision,
            **demand_fields(arrivals, trace, client_batch, protocol),
            "shared_memory": shared_memory_of(shared_memory, server),
        }
    )
    return config, notes


def given_as_argument(context: Context, name: str) -> bool:
    """Whether an option's value stands among the arguments, and not in the environment."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def given_options(context: Context) -> dict[str, tuple[str, Any]]:
    """The options that stand among the arguments: parameter -> the option as it is written, and its value."""
    return {
        parameter.name: (parameter.opts[0], context.params[parameter.name])
        for parameter in context.command.params
        if parameter.name and given_as_argument(context, parameter.name)
    }


def checked_storage(url: str | None, *, in_arguments: bool) -> str | None:
    """The storage URL as it was given. Raises BadInput where a password stands among the arguments.

    Addresses with passwords are taken out of the environment: servers, which run models, would inherit them.
    """
    for variable in (STORAGE_VARIABLE, SERVER_URL_VARIABLE):
        os.environ.pop(variable, None)
    if url is not None and not is_storage_url(url):
        raise BadInput(
            f"--storage {shown_storage(url)} is not a storage URL.",
            "Write postgresql://USER@HOST/DATABASE or sqlite:///FILE, with %20 and the like for odd letters.",
        )
    if url is not None and in_arguments and has_password(url):
        raise BadInput(
            f"--storage {shown_storage(url)} holds a password, and everybody here can read the process list.",
            "Put the URL into the variable TRITUNE_STORAGE, or the password into PGPASSWORD or ~/.pgpass.",
        )
    return url


def _check_choices(
    server: str,
    server_url: str | None,
    server_repository: Path | None,
    max_memory: str | None,
) -> None:
    kinds = get_args(ServerKind)
    if server not in kinds:
        raise BadInput(f"--server {server} is not a kind of server.", f"Choose one of {', '.join(kinds)}.")
    if server == "remote" and (server_url is None or server_repository is None):
        raise BadInput(
            "--server remote needs to know the server and its model repository.",
            "Add --server-url http://HOST:PORT and --server-repository DIR (the same folder, as seen from here).",
        )
    if max_memory is not None and server in ("docker", "remote"):
        raise BadInput(
            f"--max-memory {max_memory} cannot be kept: the memory of a {server} server is not seen from here.",
            "Leave --max-memory out, or measure with --server embedded or local.",
        )


def shared_memory_of(text: str, server: str) -> SharedMemory:
    """The kind that `--shared-memory` names. Raises BadInput, also for a server that could not see the memory."""
    kind = shared_memory_from_text(text)
    if kind != "none" and server in ("docker", "remote"):
        raise BadInput(
            f"--shared-memory {kind} needs a server that sees this machine's /dev/shm; a {server} one does not.",
            "Leave it out, or measure with --server embedded or local.",
        )
    return kind


def check_file(option: str, path: Path | None) -> None:
    """Raise BadInput where a path was given and is no file."""
    if path is not None and not is_file(path):
        raise BadInput(f"{option} {path} is not a file.", "Check the path.")


def check_term(price_term: str) -> None:
    """Raise BadInput for a way to buy machines that no price list has."""
    if price_term not in TERMS:
        raise BadInput(
            f"--price-term {price_term} is no way to buy a machine.", f"Choose one of {', '.join(TERMS)}."
        )


def check_money(price_per_hour: float | None, rate: float | None, peak_rate: float | None) -> None:
    """Raise BadInput for prices and rates that cannot be."""
    for option, value in (("--price-per-hour", price_per_hour), ("--rate", rate), ("--peak-rate", peak_rate)):
        if value is not None and not value > 0:
            raise BadInput(f"{option} {value:g} is not above zero.", f"Give {option} a positive number.")
    if peak_rate is not None and rate is not None and peak_rate < rate:
        raise BadInput(
            f"--peak-rate {peak_rate:g} is below --rate {rate:g}.", "Give the highest rate as --peak-rate."
        )


def _check_objective(objective: str, rate: float | None) -> None:
    known = get_args(ObjectiveName)
    if objective not in known:
        raise BadInput(f"--objective {objective} is unknown.", f"Choose one of {', '.join(known)}.")
    if objective == "latency" and rate is None:
        raise BadInput(
            "--objective latency needs a rate at which latencies are compared.",
            "Add --rate PER_S, the traffic of one replica.",
        )


def check_range(option: str, value: float | None, least: float, most: float) -> None:
    """Raise BadInput for a number outside these bounds."""
    if value is not None and not least <= value <= most:
        raise BadInput(
            f"{option} {value:.15g} is out of range.", f"Give {option} a number from {least:g} to {most:.15g}."
        )


def _default_output(model: str | Path) -> Path:
    return Path("runs") / f"{stem_of(model)}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
