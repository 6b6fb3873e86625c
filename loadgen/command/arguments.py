"""Turn the options of `loadtest` into an order; every problem is an error that names its option."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadgen.command.streams import streamed_from, streams_load, timeout_s
from loadgen.distributed.secret import cluster_secret
from loadgen.errors import BadInput
from loadgen.options.load_test import LoadTestOptions
from loadgen.spec.addresses import is_on_this_machine
from loadgen.spec.limits import Limits
from loadgen.spec.load_test import LoadTest, Note
from loadgen.spec.plan import Arrivals, ClosedLoopPlan, LoadPlan, Payload, arrivals_from_file, arrivals_from_text
from loadgen.spec.target import Target, WorkerRights, headers_from_options
from loadgen.wire.sockets import tls_context

DEFAULT_DURATION_S = 30.0
DEFAULT_TIMEOUT_S = 10.0
DEFAULT_SEARCH_S = 120.0
_FIRST_GUESS_PER_S = 1.0  # used if --find-max has to find even the first guess


def order_from_options(options: LoadTestOptions, environment: Mapping[str, str]) -> tuple[LoadTest, list[Note]]:
    """Return the order, and notes on assumptions. Raises BadInput or PlanError."""
    notes: list[Note] = []
    target = _target(options, environment)
    streamed = streamed_from(options)
    plan, arrivals_text = _plan(options, notes)
    limits, warmup_s = _limits(options), options.warmup_s
    if streamed is not None:
        plan, limits, warmup_s = streams_load(options, streamed, plan, limits, notes)
    order = LoadTest(
        target=target,
        payload=Payload(
            batch_size=options.batch_size,
            shapes=options.shapes,
            data_file=options.input_data if streamed is None else options.prompts,
            seed=options.seed,
            shared_memory=options.shared_memory,
            outputs=options.ask_output,
            format=options.format,
            streamed=streamed,
        ),
        plan=plan,
        limits=limits,
        arrivals_text=arrivals_text,
        warmup_s=warmup_s,
        wait_ready_s=options.wait_ready_s,
        processes=options.processes,
        find_max=options.find_max,
        first_rate_known=options.rate is not None,
        fail_fast=options.fail_fast,
        accept_observed=options.accept_observed,
        compare=options.compare,
        outputs={
            f"--{name.replace('_', '-')}": path
            for name in ("output", "html", "junit", "csv", "keep_log")
            if (path := getattr(options, name)) is not None
        },
    )
    if options.insecure:
        text = "--insecure: the server's certificate is NOT checked; anyone in between can read and change all."
        notes.append(Note(text=text, loud=True))
    if options.concurrency is not None:
        text = (
            f"CLOSED LOOP: {options.concurrency} callers who wait for each response. When the server slows down, "
            "so does this load; its p99 does not describe independent users. Use --rate for those."
        )
        notes.append(Note(text=text, loud=True))
    if not options.yes and not is_on_this_machine(target.host):
        raise BadInput(
            f"{target.host} is not this machine, and a load test can take a server down.",
            "Add --yes when you may load it.",
        )
    return order, notes


def worker_from_options(options: LoadTestOptions, environment: Mapping[str, str]) -> WorkerRights:
    """Return the headers that a worker may send, and the server it may load. Raises BadInput or PlanError."""
    assert options.worker is not None
    found = headers_from_options(options.header, options.header_env, environment)
    if (found or options.client_cert or options.client_key) and options.url is None:
        raise BadInput(
            "A worker was given headers or a client certificate, and no server that they are for.",
            f"Give the address of the test as well: loadtest https://HOST:8000 --worker {options.worker} ...",
        )
    server = None
    if options.url is not None:
        server = Target(url=options.url, model_name="any", headers=found, **_client_pair(options))
        if server.client_cert is not None:
            tls_context(server)  # certificate and key can be used
    secret = cluster_secret(options.worker, environment)
    return WorkerRights(secret=secret, server=server, may_load_others=options.yes)


def _client_pair(options: LoadTestOptions) -> dict[str, Any]:
    return {"client_cert": options.client_cert, "client_key": options.client_key}


def _target(options: LoadTestOptions, environment: Mapping[str, str]) -> Target:
    if options.url is None:
        raise BadInput(
            "No address was given.", "Give the server: loadtest http://localhost:8000 --model NAME --rate 100"
        )
    if options.model is None:
        raise BadInput("No model was given.", "Add --model NAME, as the server knows it.")
    url, _, query = options.url.partition("?")
    target = Target(
        url=url,
        query=query,
        model_name=options.model,
        model_version=options.model_version,
        headers=headers_from_options(options.header, options.header_env, environment),
        ca_cert=options.ca_cert,
        insecure=options.insecure,
        **_client_pair(options),
        server_name=options.server_name,
    )
    if not target.is_tls and (options.insecure or options.ca_cert):
        raise BadInput(
            f"{url} is not encrypted, so there is no certificate to check.",
            "Use https:// or grpcs://, or leave --insecure and --ca-cert out.",
        )
    if options.format == "json" and not target.is_http:
        raise BadInput(f"--format json is for HTTP, and {url} is gRPC.", "Give an http:// address.")
    if target.client_cert is not None:
        tls_context(target)  # certificate and key can be used
    return target


def _plan(options: LoadTestOptions, notes: list[Note]) -> tuple[LoadPlan | ClosedLoopPlan, str]:
    """Return the load, and its arrivals in words."""
    longest_s = max((limit.limit_s for limit in options.limits), default=0.0)
    given_up_s = timeout_s(options, longest_s, default_s=max(DEFAULT_TIMEOUT_S, 2 * longest_s))
    if options.concurrency is not None:
        for option, value in (
            ("--rate", options.rate),
            ("--arrivals", options.arrivals),
            ("--trace", options.trace),
            ("--max-in-flight", options.max_in_flight),
            ("--refuse-above", options.refuse_above),
        ):
            if value is not None:
                raise BadInput(
                    f"--concurrency is a closed loop and cannot follow {option}.",
                    f"Leave one of them out; --max-in-flight {options.concurrency} caps an open loop.",
                )
        closed = ClosedLoopPlan(
            concurrency=options.concurrency,
            duration_s=options.duration_s or DEFAULT_DURATION_S,
            seed=options.seed,
            timeout_s=given_up_s,
            most_send_lag_ms=options.most_send_lag_ms,
        )
        return closed, f"closed loop, {options.concurrency} callers"
    arrivals, text = _arrivals(options)
    rate, recorded_s = _rate(options, arrivals, notes)
    default_s = DEFAULT_SEARCH_S if options.find_max else recorded_s or DEFAULT_DURATION_S
    plan = LoadPlan(
        rate_per_s=rate,
        duration_s=options.duration_s or default_s,
        seed=options.seed,
        arrivals=arrivals,
        timeout_s=given_up_s,
        max_in_flight=options.max_in_flight,
        refuse_above=options.refuse_above,
        most_send_lag_ms=options.most_send_lag_ms,
    )
    return plan, text


def _arrivals(options: LoadTestOptions) -> tuple[Arrivals, str]:
    if options.trace is None:
        text = options.arrivals or "poisson"
        return arrivals_from_text(text), text
    if options.arrivals is not None:
        raise BadInput("--trace brings its own arrivals.", "Leave --arrivals out.")
    return arrivals_from_file(options.trace), f"trace {options.trace.name}"


def _rate(options: LoadTestOptions, arrivals: Arrivals, notes: list[Note]) -> tuple[float, float | None]:
    """Return the rate, and the recorded duration of a trace if there is one, at the speed asked for."""
    if arrivals.kind in ("trace", "rates"):
        from loadgen.traffic.arrivals import recorded_duration_s, recorded_rate_per_s

        recorded = recorded_rate_per_s(arrivals)
        rate = recorded if options.rate is None else options.rate
        if options.rate is None:
            notes.append(Note(text=f"Replaying the trace as recorded: {recorded:,.4g} requests/s on average."))
        faster = rate / recorded if arrivals.kind == "trace" and rate > 0 else 1.0
        return rate, recorded_duration_s(arrivals) / faster
    if options.rate is None and not options.find_max:
        raise BadInput(
            "No load was given.",
            "Add --rate PER_SECOND, or --find-max to search for the highest rate within the limit.",
        )
    return (_FIRST_GUESS_PER_S if options.rate is None else options.rate), None


def _limits(options: LoadTestOptions) -> Limits:
    if not 0.5 < options.confidence < 1:
        raise BadInput(
            f"--confidence {options.confidence:g} is not a confidence.", "Use more than 0.5 and less than 1."
        )
    latency = tuple(sorted(options.limits, key=lambda one: one.quantile))
    return Limits(latency=latency, max_error_ratio=options.max_error_ratio, confidence=options.confidence)
