"""The `loadtest` command: arguments in, exit code out."""

from __future__ import annotations

import os
import sys

import typer

from loadgen import options
from loadgen.command import leave, run_app, show_version

app = typer.Typer(
    add_completion=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,  # its tracebacks could show header values
)


@app.command()
def loadtest(
    url: options.Url = None,
    model: options.Model = None,
    model_version: options.ModelVersion = "",
    rate: options.Rate = None,
    arrivals: options.Arrivals = None,
    trace: options.Trace = None,
    duration: options.Duration = None,
    warmup: options.Warmup = None,
    max_in_flight: options.MaxInFlight = None,
    concurrency: options.Concurrency = None,
    timeout: options.Timeout = "10s",
    max_send_lag: options.MaxSendLag = None,
    processes: options.Processes = 1,
    seed: options.Seed = 0,
    p99: options.P99 = None,
    p50: options.P50 = None,
    p90: options.P90 = None,
    p95: options.P95 = None,
    p999: options.P999 = None,
    max_errors: options.MaxErrors = None,
    confidence: options.Confidence = 0.95,
    find_max: options.FindMax = False,
    fail_fast: options.FailFast = False,
    compare: options.Compare = None,
    input_data: options.InputData = None,
    shape: options.Shape = None,
    batch_size: options.BatchSize = 1,
    shared_memory: options.SharedMemory = "none",
    header: options.Header = None,
    header_env: options.HeaderEnv = None,
    ca_cert: options.CaCert = None,
    insecure: options.Insecure = False,
    yes: options.Yes = False,
    json: options.Json = False,
    output: options.Output = None,
    html: options.Html = None,
    csv: options.Csv = None,
    junit: options.Junit = None,
    web: options.Web = False,
    web_port: options.WebPort = 8089,
    debug: options.Debug = False,
    master: options.Master = False,
    expect_workers: options.ExpectWorkers = 1,
    worker: options.Worker = None,
    port: options.Port = 5557,
    bind: options.Bind = "127.0.0.1",
    version: options.Version = False,
) -> None:
    """Load a model on a Triton server, honestly, and say whether it keeps a latency limit.

    `loadtest http://localhost:8000 --model resnet50 --rate 200 --p99 50ms`

    Exit codes: 0 kept, 99 broken, 98 the client could not send the load, 97 worse than the baseline, 96 too short
    to decide, 2 bad input, 3 a disk or a file failed meanwhile, 130 interrupted, 1 a bug.
    """
    del debug  # read from the arguments by `run_app`, which also covers errors before this point
    if version:
        show_version()
        return
    if worker is not None:
        from loadgen.arguments import worker_from_arguments
        from loadgen.worker_session import work_on_all

        headers, from_env = tuple(header or ()), tuple(header_env or ())
        rights = worker_from_arguments(worker, url, headers, from_env, os.environ, yes=yes)
        raise typer.Exit(work_on_all(worker, port, rights, processes=processes))
    secret = b""
    if master:
        from loadgen.cluster_secret import cluster_secret

        secret = cluster_secret(bind, os.environ)
        import locust  # noqa: F401 - it replaces parts of the standard library: before anything else uses them
    from loadgen import session
    from loadgen.arguments import Arguments, order_from_arguments
    from loadgen.order import Outputs

    limits = (("p50", p50), ("p90", p90), ("p95", p95), ("p99", p99), ("p999", p999))
    arguments = Arguments(
        url=url,
        model=model,
        model_version=model_version,
        rate=rate,
        arrivals=arrivals,
        trace=trace,
        concurrency=concurrency,
        max_in_flight=max_in_flight,
        duration=duration,
        warmup=warmup,
        timeout=timeout,
        max_send_lag=max_send_lag,
        seed=seed,
        processes=processes,
        limits=tuple((name, text) for name, text in limits if text is not None),
        max_errors=max_errors,
        confidence=confidence,
        find_max=find_max,
        fail_fast=fail_fast,
        compare=compare,
        batch_size=batch_size,
        shared_memory=shared_memory,
        shapes=tuple(shape or ()),
        input_data=input_data,
        headers=tuple(header or ()),
        header_env=tuple(header_env or ()),
        ca_cert=ca_cert,
        insecure=insecure,
        yes=yes,
        outputs=Outputs(record=output, html=html, junit=junit, csv_prefix=csv),
    )
    order, notes = order_from_arguments(arguments, os.environ)
    fleet = session.Fleet(host=bind, port=port, workers=expect_workers, secret=secret) if master else None
    raise typer.Exit(session.run(order, notes, as_json=json, web_port=web_port if web else None, fleet=fleet))


def main() -> None:
    """Entry point of the console command."""
    leave(run_command(sys.argv[1:]))


def run_command(arguments: list[str]) -> int:
    """Run the command line and return its exit code; no exception leaves."""
    return run_app(app, arguments, name="loadtest", when_stopped="Nothing was measured.")
