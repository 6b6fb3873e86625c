"""The options of `loadtest`, as typer reads them: the type of each, its help and the panel it stands in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

LOAD, LIMITS, INPUTS, CONNECTION, OUTPUT, MACHINES = (
    "Load", "Limits", "Inputs", "Connection", "Output", "Many machines",
)  # fmt: skip

Url = Annotated[
    str | None,
    typer.Argument(help="The server: `http://`, `https://`, `grpc://` or `grpcs://`, host and port."),
]
Model = Annotated[str | None, typer.Option(help="The model to load.", metavar="NAME")]
ModelVersion = Annotated[str, typer.Option(help="Its version. Default: the server chooses.", metavar="VERSION")]
Rate = Annotated[
    float | None,
    typer.Option(help="Requests per second, open loop.", rich_help_panel=LOAD, metavar="PER_S"),
]
Arrivals = Annotated[
    str | None,
    typer.Option(
        help="`poisson` (the default), `constant`, `gamma:cv=2`, `ramp:from=0.5,to=2`, `steps:0.5,1,1.5` or "
        "`spike:level=3,start=0.4,end=0.5`; levels are multiples of the rate, start and end parts of the "
        "duration.",
        rich_help_panel=LOAD,
        metavar="KIND",
    ),
]
Trace = Annotated[
    Path | None,
    typer.Option(
        help="Replay a file: a time in seconds a line, or `time,rate` lines.",
        rich_help_panel=LOAD,
        metavar="FILE",
    ),
]
Duration = Annotated[
    str | None,
    typer.Option(
        help="How long to measure. Default: 30s, a whole trace, or 2m of load for --find-max.",
        rich_help_panel=LOAD,
        metavar="DURATION",
    ),
]
Warmup = Annotated[
    str | None,
    typer.Option(
        help="Load that is sent first and left out. Default: 1s, or three limits if that is longer.",
        rich_help_panel=LOAD,
        metavar="DURATION",
    ),
]
MaxInFlight = Annotated[
    int | None,
    typer.Option(
        help="Hold due requests back while so many are unanswered. Their wait counts.",
        rich_help_panel=LOAD,
        metavar="N",
    ),
]
Concurrency = Annotated[
    int | None,
    typer.Option(
        help="CLOSED LOOP instead of a rate: so many callers who wait for each answer. Says little about p99 "
        "under independent users.",
        rich_help_panel=LOAD,
        metavar="N",
    ),
]
Timeout = Annotated[
    str,
    typer.Option(
        help="When to give a request up, from its due time. It then counts as failed.",
        rich_help_panel=LOAD,
        metavar="DURATION",
    ),
]
MaxSendLag = Annotated[
    str | None,
    typer.Option(
        help="How late requests may leave, p99, before the client is what was measured. Default: "
        "1ms, or 5 % of the strictest limit. Latency counts from the due time in any case.",
        rich_help_panel=LOAD,
        metavar="DURATION",
    ),
]
Processes = Annotated[int, typer.Option(help="Load processes; one a core.", rich_help_panel=LOAD, metavar="N")]
Seed = Annotated[int, typer.Option(help="Seed of the arrivals and of made-up inputs.", rich_help_panel=LOAD)]
P99 = Annotated[
    str | None,
    typer.Option(
        help="Latency that 99 % of all requests must keep, such as `50ms`.",
        rich_help_panel=LIMITS,
        metavar="DURATION",
    ),
]
P50 = Annotated[
    str | None, typer.Option(help="The same for half of them.", rich_help_panel=LIMITS, metavar="DURATION")
]
P90 = Annotated[str | None, typer.Option(help="The same for 90 %.", rich_help_panel=LIMITS, metavar="DURATION")]
P95 = Annotated[str | None, typer.Option(help="The same for 95 %.", rich_help_panel=LIMITS, metavar="DURATION")]
P999 = Annotated[str | None, typer.Option(help="The same for 99.9 %.", rich_help_panel=LIMITS, metavar="DURATION")]
MaxErrors = Annotated[
    str | None,
    typer.Option(
        help="Share of requests that may fail, such as `0.1%`. Without it failures still count as too late.",
        rich_help_panel=LIMITS,
        metavar="PERCENT",
    ),
]
Confidence = Annotated[
    float, typer.Option(help="Confidence of every answer.", rich_help_panel=LIMITS, metavar="SHARE")
]
FindMax = Annotated[
    bool,
    typer.Option("--find-max", help="Search for the highest rate that keeps the limits.", rich_help_panel=LIMITS),
]
FailFast = Annotated[
    bool,
    typer.Option("--fail-fast", help="Stop once a limit is certainly broken.", rich_help_panel=LIMITS),
]
Compare = Annotated[
    Path | None,
    typer.Option(
        help="An earlier run's --output: fail when p99, or the highest rate, is worse beyond its confidence.",
        rich_help_panel=LIMITS,
        metavar="FILE",
    ),
]
InputData = Annotated[
    Path | None,
    typer.Option(
        help="Samples to send in turn, .npz or .json, or lengths as .txt. Default: made from the metadata.",
        rich_help_panel=INPUTS,
        metavar="FILE",
    ),
]
Shape = Annotated[
    list[str] | None,
    typer.Option(
        help="Sizes of an input's free dimensions, without the batch: `input_ids:128`. Repeatable.",
        rich_help_panel=INPUTS,
        metavar="NAME:D1,D2",
    ),
]
SharedMemory = Annotated[
    str,
    typer.Option(
        help="`system`: inputs wait in /dev/shm, and requests say where. For a server on this machine.",
        rich_help_panel=INPUTS,
        metavar="KIND",
    ),
]
BatchSize = Annotated[int, typer.Option(help="Samples in each request.", rich_help_panel=INPUTS, metavar="N")]
Header = Annotated[
    list[str] | None,
    typer.Option(
        help="A header, `Name: value`. Repeatable. Other users of this machine can read command lines: use "
        "--header-env for secrets.",
        rich_help_panel=CONNECTION,
        metavar="HEADER",
    ),
]
HeaderEnv = Annotated[
    list[str] | None,
    typer.Option(
        help="A header whose value stands in an environment variable. Never printed or written. Repeatable.",
        rich_help_panel=CONNECTION,
        metavar="NAME=VARIABLE",
    ),
]
CaCert = Annotated[
    Path | None,
    typer.Option(
        help="PEM file of the authority to trust instead of the system's.",
        rich_help_panel=CONNECTION,
        metavar="FILE",
    ),
]
Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="Do NOT check the server's certificate.", rich_help_panel=CONNECTION),
]
Yes = Annotated[
    bool,
    typer.Option(
        "--yes", help="I may load this server: needed when it is not this machine.", rich_help_panel=CONNECTION
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print the JSON record alone on stdout.", rich_help_panel=OUTPUT)
]
Output = Annotated[
    Path | None,
    typer.Option(
        help="Write the JSON record, for --compare and for yourself.", rich_help_panel=OUTPUT, metavar="FILE"
    ),
]
Html = Annotated[
    Path | None,
    typer.Option(help="Write a page with plots, in one file.", rich_help_panel=OUTPUT, metavar="FILE"),
]
Csv = Annotated[
    Path | None,
    typer.Option(
        help="Write PREFIX_stats.csv, PREFIX_stats_history.csv and PREFIX_failures.csv, as Locust does.",
        rich_help_panel=OUTPUT,
        metavar="PREFIX",
    ),
]
Junit = Annotated[
    Path | None,
    typer.Option(help="Write JUnit XML, a case a limit.", rich_help_panel=OUTPUT, metavar="FILE"),
]
Web = Annotated[
    bool,
    typer.Option(
        "--web", help="Locust's web UI on http://127.0.0.1:8089 while the load runs.", rich_help_panel=OUTPUT
    ),
]
WebPort = Annotated[int, typer.Option(help="Another port for it.", rich_help_panel=OUTPUT, metavar="PORT")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.", rich_help_panel=OUTPUT)]
Master = Annotated[
    bool,
    typer.Option("--master", help="Let workers on other machines send the load.", rich_help_panel=MACHINES),
]
ExpectWorkers = Annotated[
    int,
    typer.Option(help="How many to wait for, and to divide the load by.", rich_help_panel=MACHINES, metavar="N"),
]
Worker = Annotated[
    str | None,
    typer.Option(
        help="Be a worker for the master on that host. Takes --port, --processes, --yes, and the server's address "
        "with --header and --header-env, which it sends nowhere else; the rest comes from the master.",
        rich_help_panel=MACHINES,
        metavar="HOST",
    ),
]
Port = Annotated[int, typer.Option(help="The port of the master.", rich_help_panel=MACHINES, metavar="PORT")]
Bind = Annotated[
    str,
    typer.Option(
        help="The address on which the master listens, `*` for all. Any that other machines can reach needs "
        "TRITUNE_CLUSTER_SECRET, the same for the master and its workers.",
        rich_help_panel=MACHINES,
        metavar="ADDRESS",
    ),
]
Version = Annotated[bool, typer.Option("--version", help="Print the version and leave.")]
