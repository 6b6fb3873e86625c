"""Command-line arguments of `loadtest` into an order; every problem is an error that names its option."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from loadgen.arrival_text import arrivals_from_file, arrivals_from_text
from loadgen.cluster_secret import cluster_secret
from loadgen.headers import headers_from_options
from loadgen.order import QUANTILES, LatencyLimit, Limits, Note, Order, Outputs
from loadgen.own_machine import is_on_this_machine
from loadgen.plan import Arrivals, ClosedLoopPlan, LoadPlan, Payload, Target
from loadgen.units import noted_duration_ms, shape_from_text, share_from_text, shared_memory_from_text
from loadgen.user_errors import BadInput
from loadgen.worker_rights import WorkerRights

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DEFAULT_DURATION_S = 30.0
DEFAULT_SEARCH_S = 120.0
_FIRST_GUESS_PER_S = 1.0  # stands in where --find-max has to find even the first guess


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """The command line as it was typed, for one load test."""

    url: str | None
    model: str | None
    model_version: str = ""
    rate: float | None = None
    arrivals: str | None = None
    trace: Path | None = None
    concurrency: int | None = None
    max_in_flight: int | None = None
    duration: str | None = None
    warmup: str | None = None
    timeout: str = "10s"
    max_send_lag: str | None = None
    seed: int = 0
    processes: int = 1
    limits: tuple[tuple[str, str], ...] = ()  # ("p99", "50ms")
    max_errors: str | None = None
    confidence: float = 0.95
    find_max: bool = False
    fail_fast: bool = False
    compare: Path | None = None
    batch_size: int = 1
    shared_memory: str = "none"
    shapes: tuple[str, ...] = ()
    input_data: Path | None = None
    headers: tuple[str, ...] = ()
    header_env: tuple[str, ...] = ()
    ca_cert: Path | None = None
    insecure: bool = False
    yes: bool = False
    outputs: Outputs = field(default_factory=Outputs)


def order_from_arguments(arguments: Arguments, environment: Mapping[str, str]) -> tuple[Order, list[Note]]:
    """The order, and notes on what was assumed. Raises BadInput or PlanError."""
    notes: list[Note] = []
    target = _target(arguments, environment)
    plan, arrivals_text = _plan(arguments, notes)
    order = Order(
        target=target,
        payload=Payload(
            batch_size=arguments.batch_size,
            shapes=dict(shape_from_text(text) for text in arguments.shapes),
            data_file=_existing("--input-data", arguments.input_data),
            seed=arguments.seed,
            shared_memory=shared_memory_from_text(arguments.shared_memory),
        ),
        plan=plan,
        limits=_limits(arguments, notes),
        arrivals_text=arrivals_text,
        warmup_s=_seconds("--warmup", arguments.warmup, notes, or_zero=True),
        processes=arguments.processes,
        find_max=arguments.find_max,
        first_rate_known=arguments.rate is not None,
        fail_fast=arguments.fail_fast,
        compare=_existing("--compare", arguments.compare),
        outputs=arguments.outputs,
    )
    if arguments.insecure:
        text = "--insecure: the server's certificate is NOT checked; anyone in between can read and change all."
        notes.append(Note(text=text, loud=True))
    if arguments.concurrency is not None:
        text = (
            f"CLOSED LOOP: {arguments.concurrency} callers who wait for each answer. When the server slows down, "
            "so does this load; its p99 says little about independent users. Use --rate for those."
        )
        notes.append(Note(text=text, loud=True))
    if not arguments.yes and not is_on_this_machine(target.host):
        raise BadInput(
            f"{target.host} is not this machine, and a load test can take a server down.",
            "Add --yes when you may load it.",
        )
    return order, notes


def worker_from_arguments(
    master: str,
    url: str | None,
    headers: tuple[str, ...],
    header_env: tuple[str, ...],
    environment: Mapping[str, str],
    *,
    yes: bool,
) -> WorkerRights:
    """What a worker is allowed to send, and where. Raises BadInput or PlanError."""
    found = headers_from_options(headers, header_env, environment)
    if found and url is None:
        raise BadInput(
            "A worker with headers was not told which server they are for.",
            f"Give the address of the test as well: loadtest http://HOST:8000 --worker {master} --header-env ...",
        )
    if url is not None:
        Target(url=url, model_name="any")
    secret = cluster_secret(master, environment)
    return WorkerRights(secret=secret, server=url, headers=found, may_load_others=yes)


def _target(arguments: Arguments, environment: Mapping[str, str]) -> Target:
    if arguments.url is None:
        raise BadInput(
            "No address was given.", "Say which server: loadtest http://localhost:8000 --model NAME --rate 100"
        )
    if arguments.model is None:
        raise BadInput("No model was given.", "Add --model NAME, as the server knows it.")
    target = Target(
        url=arguments.url,
        model_name=arguments.model,
        model_version=arguments.model_version,
        headers=headers_from_options(arguments.headers, arguments.header_env, environment),
        ca_cert=_existing("--ca-cert", arguments.ca_cert),
        insecure=arguments.insecure,
    )
    if not target.is_tls and (arguments.insecure or arguments.ca_cert):
        raise BadInput(
            f"{arguments.url} is not encrypted, so there is no certificate to check.",
            "Use https:// or grpcs://, or leave --insecure and --ca-cert out.",
        )
    return target


def _plan(arguments: Arguments, notes: list[Note]) -> tuple[LoadPlan | ClosedLoopPlan, str]:
    """The load, and its arrivals in words."""
    duration_s = _seconds("--duration", arguments.duration, notes)
    timeout_s = _seconds("--timeout", arguments.timeout, notes) or 10.0
    most_send_lag_ms = None
    if arguments.max_send_lag is not None:
        most_send_lag_ms = _duration_ms("--max-send-lag", arguments.max_send_lag, notes, default_unit="ms")
    if arguments.concurrency is not None:
        for option, value in (
            ("--rate", arguments.rate),
            ("--arrivals", arguments.arrivals),
            ("--trace", arguments.trace),
            ("--max-in-flight", arguments.max_in_flight),
        ):
            if value is not None:
                raise BadInput(
                    f"--concurrency is a closed loop and cannot follow {option}.",
                    f"Leave one of them out; --max-in-flight {arguments.concurrency} caps an open loop.",
                )
        closed = ClosedLoopPlan(
            concurrency=arguments.concurrency,
            duration_s=duration_s or DEFAULT_DURATION_S,
            seed=arguments.seed,
            timeout_s=timeout_s,
            most_send_lag_ms=most_send_lag_ms,
        )
        return closed, f"closed loop, {arguments.concurrency} callers"
    arrivals, text = _arrivals(arguments)
    rate, recorded_s = _rate(arguments, arrivals, notes)
    default_s = DEFAULT_SEARCH_S if arguments.find_max else recorded_s or DEFAULT_DURATION_S
    plan = LoadPlan(
        rate_per_s=rate,
        duration_s=duration_s or default_s,
        seed=arguments.seed,
        arrivals=arrivals,
        timeout_s=timeout_s,
        max_in_flight=arguments.max_in_flight,
        most_send_lag_ms=most_send_lag_ms,
    )
    return plan, text


def _arrivals(arguments: Arguments) -> tuple[Arrivals, str]:
    if arguments.trace is None:
        text = arguments.arrivals or "poisson"
        return arrivals_from_text(text), text
    if arguments.arrivals is not None:
        raise BadInput("--trace brings its own arrivals.", "Leave --arrivals out.")
    return arrivals_from_file(arguments.trace), f"trace {arguments.trace.name}"


def _rate(arguments: Arguments, arrivals: Arrivals, notes: list[Note]) -> tuple[float, float | None]:
    """The rate, and how long the trace was recorded where there is one and no other speed was asked for."""
    if arrivals.kind in ("trace", "rates"):
        from loadgen.arrivals import recorded_duration_s, recorded_rate_per_s

        recorded = recorded_rate_per_s(arrivals)
        rate = recorded if arguments.rate is None else arguments.rate
        if arguments.rate is None:
            notes.append(Note(text=f"Replaying the trace as recorded: {recorded:,.4g} requests/s on average."))
        faster = rate / recorded if arrivals.kind == "trace" and rate > 0 else 1.0
        return rate, recorded_duration_s(arrivals) / faster
    if arguments.rate is None and not arguments.find_max:
        raise BadInput(
            "No load was given.",
            "Add --rate PER_SECOND, or --find-max to search for the highest rate that keeps the limit.",
        )
    return (_FIRST_GUESS_PER_S if arguments.rate is None else arguments.rate), None


def _limits(arguments: Arguments, notes: list[Note]) -> Limits:
    latency = []
    for name, text in arguments.limits:
        limit_ms = _duration_ms(f"--{name}", text, notes, default_unit="ms")
        latency.append(LatencyLimit(quantile=QUANTILES[name], limit_ms=limit_ms))
    if not 0.5 < arguments.confidence < 1:
        raise BadInput(
            f"--confidence {arguments.confidence:g} is not a confidence.", "Use more than 0.5 and less than 1."
        )
    share = None if arguments.max_errors is None else share_from_text(arguments.max_errors, option="--max-errors")
    return Limits(latency=tuple(latency), max_error_ratio=share, confidence=arguments.confidence)


def _seconds(option: str, text: str | None, notes: list[Note], *, or_zero: bool = False) -> float | None:
    if text is None:
        return None
    if or_zero and text.strip().rstrip("mshin ") in ("0", "0.0"):
        return 0.0
    return _duration_ms(option, text, notes, default_unit="s") / 1000


def _duration_ms(option: str, text: str, notes: list[Note], *, default_unit: str) -> float:
    def note(words: str) -> None:
        notes.append(Note(text=words))

    return noted_duration_ms(text, option=option, default_unit=default_unit, note=note)


def _existing(option: str, path: Path | None) -> Path | None:
    if path is not None and not path.is_file():
        raise BadInput(f"{option} {path} is not a file.", "Check the path.")
    return path
