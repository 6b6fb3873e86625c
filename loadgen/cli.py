"""The `loadtest` command: arguments in, exit code out."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from loadgen.command import leave, run_app

app = typer.Typer(
    add_completion=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,  # its tracebacks could show header values
)

LOAD, LIMITS, INPUTS, CONNECTION, OUTPUT, MACHINES = (
    "Load", "Limits", "Inputs", "Connection", "Output", "Many machines",
)  # fmt: skip


@app.command()
def loadtest(
    url: Annotated[
        str | None,
        typer.Argument(help="The server: `http://`, `https://`, `grpc://` or `grpcs://`, host and port."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model to load.", metavar="NAME")] = None,
    model_version: Annotated[
        str, typer.Option(help="Its version. Default: the server chooses.", metavar="VERSION")
    ] = "",
    rate: Annotated[
        float | None,
        typer.Option(help="Requests per second, open loop.", rich_help_panel=LOAD, metavar="PER_S"),
    ] = None,
    arrivals: Annotated[
        str | None,
        typer.Option(
            help="`poisson` (the default), `constant`, `gamma:cv=2`, `ramp:from=0.5,to=2`, `steps:0.5,1,1.5` or "
            "`spike:level=3,start=0.4,end=0.5`; levels are multiples of the rate, start and end parts of the "
            "duration.",
            rich_help_panel=LOAD,
            metavar="KIND",
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Replay a file: a time in seconds a line, or `time,rate` lines.",
            rich_help_panel=LOAD,
            metavar="FILE",
        ),
    ] = None,
    duration: Annotated[
        str | None,
        typer.Option(
            help="How long to measure. Default: 30s, a whole trace, or 2m of load for --find-max.",
            rich_help_panel=LOAD,
            metavar="DURATION",
        ),
    ] = None,
    warmup: Annotated[
        str | None,
        typer.Option(
            help="Load that is sent first and left out. Default: 1s, or three limits if that is longer.",
            rich_help_panel=LOAD,
            metavar="DURATION",
        ),
    ] = None,
    max_in_flight: Annotated[
        int | None,
        typer.Option(
            help="Hold due requests back while so many are unanswered. Their wait counts.",
            rich_help_panel=LOAD,
            metavar="N",
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            help="CLOSED LOOP instead of a rate: so many callers who wait for each answer. Says little about p99 "
            "under independent users.",
            rich_help_panel=LOAD,
            metavar="N",
        ),
    ] = None,
    timeout: Annotated[
        str,
        typer.Option(
            help="When to give a request up, from its due time. It then counts as failed.",
            rich_help_panel=LOAD,
            metavar="DURATION",
        ),
    ] = "10s",
    max_send_lag: Annotated[
        str | None,
        typer.Option(
            help="How late requests may leave, p99, before the client is what was measured. Default: "
            "1ms, or 5 % of the strictest limit. Latency counts from the due time in any case.",
            rich_help_panel=LOAD,
            metavar="DURATION",
        ),
    ] = None,
    processes: Annotated[
        int, typer.Option(help="Load processes; one a core.", rich_help_panel=LOAD, metavar="N")
    ] = 1,
    seed: Annotated[
        int, typer.Option(help="Seed of the arrivals and of made-up inputs.", rich_help_panel=LOAD)
    ] = 0,
    p99: Annotated[
        str | None,
        typer.Option(
            help="Latency that 99 % of all requests must keep, such as `50ms`.",
            rich_help_panel=LIMITS,
            metavar="DURATION",
        ),
    ] = None,
    p50: Annotated[
        str | None, typer.Option(help="The same for half of them.", rich_help_panel=LIMITS, metavar="DURATION")
    ] = None,
    p90: Annotated[
        str | None, typer.Option(help="The same for 90 %.", rich_help_panel=LIMITS, metavar="DURATION")
    ] = None,
    p95: Annotated[
        str | None, typer.Option(help="The same for 95 %.", rich_help_panel=LIMITS, metavar="DURATION")
    ] = None,
    p999: Annotated[
        str | None, typer.Option(help="The same for 99.9 %.", rich_help_panel=LIMITS, metavar="DURATION")
    ] = None,
    max_errors: Annotated[
        str | None,
        typer.Option(
            help="Share of requests that may fail, such as `0.1%`. Without it failures still count as too late.",
            rich_help_panel=LIMITS,
            metavar="PERCENT",
        ),
    ] = None,
    confidence: Annotated[
        float, typer.Option(help="Confidence of every answer.", rich_help_panel=LIMITS, metavar="SHARE")
    ] = 0.95,
    find_max: Annotated[
        bool,
        typer.Option(
            "--find-max", help="Search for the highest rate that keeps the limits.", rich_help_panel=LIMITS
        ),
    ] = False,
    fail_fast: Annotated[
        bool,
        typer.Option("--fail-fast", help="Stop once a limit is certainly broken.", rich_help_panel=LIMITS),
    ] = False,
    compare: Annotated[
        Path | None,
        typer.Option(
            help="An earlier run's --output: fail when p99, or the highest rate, is worse beyond its confidence.",
            rich_help_panel=LIMITS,
            metavar="FILE",
        ),
    ] = None,
    input_data: Annotated[
        Path | None,
        typer.Option(
            help="Samples to send in turn, .npz or .json. Default: made from the model's metadata.",
            rich_help_panel=INPUTS,
            metavar="FILE",
        ),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            help="Sizes of an input's free dimensions, without the batch: `input_ids:128`. Repeatable.",
            rich_help_panel=INPUTS,
            metavar="NAME:D1,D2",
        ),
    ] = None,
    batch_size: Annotated[
        int, typer.Option(help="Samples in each request.", rich_help_panel=INPUTS, metavar="N")
    ] = 1,
    header: Annotated[
        list[str] | None,
        typer.Option(
            help="A header, `Name: value`. Repeatable. Other users of this machine can read command lines: use "
            "--header-env for secrets.",
            rich_help_panel=CONNECTION,
            metavar="HEADER",
        ),
    ] = None,
    header_env: Annotated[
        list[str] | None,
        typer.Option(
            help="A header whose value stands in an environment variable. Never printed or written. Repeatable.",
            rich_help_panel=CONNECTION,
            metavar="NAME=VARIABLE",
        ),
    ] = None,
    ca_cert: Annotated[
        Path | None,
        typer.Option(
            help="PEM file of the authority to trust instead of the system's.",
            rich_help_panel=CONNECTION,
            metavar="FILE",
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Do NOT check the server's certificate.", rich_help_panel=CONNECTION),
    ] = False,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes", help="I may load this server: needed when it is not this machine.", rich_help_panel=CONNECTION
        ),
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print the JSON record alone on stdout.", rich_help_panel=OUTPUT)
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Write the JSON record, for --compare and for yourself.", rich_help_panel=OUTPUT, metavar="FILE"
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(help="Write a page with plots, in one file.", rich_help_panel=OUTPUT, metavar="FILE"),
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(
            help="Write PREFIX_stats.csv, PREFIX_stats_history.csv and PREFIX_failures.csv, as Locust does.",
            rich_help_panel=OUTPUT,
            metavar="PREFIX",
        ),
    ] = None,
    junit: Annotated[
        Path | None,
        typer.Option(help="Write JUnit XML, a case a limit.", rich_help_panel=OUTPUT, metavar="FILE"),
    ] = None,
    web: Annotated[
        bool,
        typer.Option(
            "--web", help="Locust's web UI on http://127.0.0.1:8089 while the load runs.", rich_help_panel=OUTPUT
        ),
    ] = False,
    web_port: Annotated[
        int, typer.Option(help="Another port for it.", rich_help_panel=OUTPUT, metavar="PORT")
    ] = 8089,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.", rich_help_panel=OUTPUT)] = False,
    master: Annotated[
        bool,
        typer.Option("--master", help="Let workers on other machines send the load.", rich_help_panel=MACHINES),
    ] = False,
    expect_workers: Annotated[
        int,
        typer.Option(
            help="How many to wait for, and to divide the load by.", rich_help_panel=MACHINES, metavar="N"
        ),
    ] = 1,
    worker: Annotated[
        str | None,
        typer.Option(
            help="Be a worker for the master on that host. Takes --port, --processes, --header, --header-env and "
            "--yes; the rest comes from the master.",
            rich_help_panel=MACHINES,
            metavar="HOST",
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(help="The port of the master.", rich_help_panel=MACHINES, metavar="PORT")
    ] = 5557,
    bind: Annotated[
        str,
        typer.Option(
            help="The address on which the master listens. Whoever reaches it can join.",
            rich_help_panel=MACHINES,
            metavar="ADDRESS",
        ),
    ] = "*",
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    """Load a model on a Triton server, honestly, and say whether it keeps a latency limit.

    `loadtest http://localhost:8000 --model resnet50 --rate 200 --p99 50ms`

    Exit codes: 0 kept, 99 broken, 98 the client could not send the load, 97 worse than the baseline, 96 too short
    to decide, 2 bad input, 130 interrupted, 1 a bug.
    """
    del debug  # read from the arguments by `run_app`, which also covers errors before this point
    if version:
        from importlib.metadata import version as installed_version

        typer.echo(f"tritune {installed_version('tritune')}")
        return
    if worker is not None:
        from loadgen.arguments import worker_from_arguments
        from loadgen.worker_session import work_on_all

        rights = worker_from_arguments(tuple(header or ()), tuple(header_env or ()), os.environ, yes=yes)
        raise typer.Exit(work_on_all(worker, port, rights, processes=processes))
    if master:
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
    fleet = session.Fleet(host=bind, port=port, workers=expect_workers) if master else None
    raise typer.Exit(session.run(order, notes, as_json=json, web_port=web_port if web else None, fleet=fleet))


def main() -> None:
    """Entry point of the console command."""
    leave(run_command(sys.argv[1:]))


def run_command(arguments: list[str]) -> int:
    """Run the command line and return its exit code; no exception leaves."""
    return run_app(app, arguments, name="loadtest", when_stopped="Nothing was measured.")
