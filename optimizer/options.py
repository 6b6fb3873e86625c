"""The options of `optimize`, as typer reads them: the type of each, its help and the panel it stands in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

MODEL, TRAFFIC, LIMIT, SERVER, MONEY, RUN = "Model", "Traffic", "Limit", "Server", "Money", "Run"
STORAGE_VARIABLE = "TRITUNE_STORAGE"
SERVER_URL_VARIABLE = "TRITUNE_SERVER_URL"

Model = Annotated[
    str | None,
    typer.Option(
        help="An ONNX file, a PyTorch ExportedProgram (`.pt2`), or `package.module:factory`, a callable that "
        "returns a PyTorch module and example inputs.",
        rich_help_panel=MODEL,
        metavar="MODEL",
    ),
]
Shape = Annotated[
    list[str] | None,
    typer.Option(
        help="Sizes of an input's dimensions without the batch, such as `input_ids:128`. Repeatable.",
        rich_help_panel=MODEL,
        metavar="NAME:D1,D2",
    ),
]
InputData = Annotated[
    Path | None,
    typer.Option(
        help="Real inputs for the load, .npz or .json; or a .txt with the length of a request a line.",
        rich_help_panel=MODEL,
        metavar="FILE",
    ),
]
Arrivals = Annotated[
    str | None,
    typer.Option(
        help="How requests come in: `poisson` (independent users), `constant`, or `gamma:cv=2` (bursts).",
        rich_help_panel=TRAFFIC,
        metavar="KIND",
    ),
]
Trace = Annotated[
    Path | None,
    typer.Option(
        help="Recorded arrivals, a time in seconds a line; played faster or slower to make each rate.",
        rich_help_panel=TRAFFIC,
        metavar="FILE",
    ),
]
ClientBatch = Annotated[
    int, typer.Option(help="Rows that every request carries.", rich_help_panel=TRAFFIC, metavar="N")
]
Protocol = Annotated[
    str,
    typer.Option(
        help="How requests travel: `http`, or `grpc`.",
        rich_help_panel=TRAFFIC,
        metavar="NAME",
    ),
]
SharedMemory = Annotated[
    str,
    typer.Option(
        help="`system`: clients on the server's machine leave inputs in /dev/shm, and send where they are.",
        rich_help_panel=TRAFFIC,
        metavar="KIND",
    ),
]
Precisions = Annotated[
    str | None,
    typer.Option(
        help="Of fp32, tf32, fp16, bf16, int8, fp8, those that compete. Default: fp32 on a CPU, "
        "fp32,tf32,fp16,bf16 on a GPU.",
        rich_help_panel=MODEL,
        metavar="P1,P2",
    ),
]
CalibrationData = Annotated[
    Path | None,
    typer.Option(
        help="Typical inputs for int8 and fp8: an .npz with an array per input, or a folder of INPUT.npy.",
        rich_help_panel=MODEL,
        metavar="PATH",
    ),
]
Accuracy = Annotated[
    str,
    typer.Option(
        help="How close to fp32 a precision must come: `strict`, `standard` or `off`, and changes such as "
        "`strict,sqnr_db=30`.",
        rich_help_panel=MODEL,
        metavar="LEVEL",
    ),
]
CalibrationMethod = Annotated[
    str,
    typer.Option(
        help="Ranges for int8 and fp8: `percentile`, or `entropy`, which clips more.",
        rich_help_panel=MODEL,
        metavar="METHOD",
    ),
]
IoPrecision = Annotated[
    str,
    typer.Option(
        help="`keep`, or `fp16` for inputs and outputs of that type where fp16 is computed.",
        rich_help_panel=MODEL,
        metavar="TYPE",
    ),
]
P99 = Annotated[
    str | None,
    typer.Option(
        help="Latency that 99 % of all requests must keep, such as `50ms` or `0.2s`.",
        rich_help_panel=LIMIT,
        metavar="DURATION",
    ),
]
P50 = Annotated[
    str | None,
    typer.Option(
        help="The same for half of them. Several limits are kept together.",
        rich_help_panel=LIMIT,
        metavar="DURATION",
    ),
]
P90 = Annotated[str | None, typer.Option(help="The same for 90 %.", rich_help_panel=LIMIT, metavar="DURATION")]
P95 = Annotated[str | None, typer.Option(help="The same for 95 %.", rich_help_panel=LIMIT, metavar="DURATION")]
P999 = Annotated[str | None, typer.Option(help="The same for 99.9 %.", rich_help_panel=LIMIT, metavar="DURATION")]
MaxMemory = Annotated[
    str | None,
    typer.Option(
        help="Memory that the server may take with the model, such as `8GiB`.",
        rich_help_panel=LIMIT,
        metavar="SIZE",
    ),
]
Confidence = Annotated[float, typer.Option(help="Confidence of the promise, 0.8 to 0.999.", rich_help_panel=LIMIT)]
Objective = Annotated[
    str,
    typer.Option(
        help="What is best within the limits: `cost` (with --rate, the fewest replicas), `latency` (the least "
        "while one replica answers --rate) or `energy` (the GPUs' least per inference).",
        rich_help_panel=LIMIT,
        metavar="WHAT",
    ),
]
Pareto = Annotated[
    bool,
    typer.Option(
        "--pareto", help="Keep and show the frontier of rate and latency of all trials.", rich_help_panel=LIMIT
    ),
]
Server = Annotated[
    str,
    typer.Option(
        help="`embedded` (the server of the `embedded` extra), `local` (tritonserver on PATH), `docker` "
        "(NVIDIA's image) or `remote` (a running server).",
        rich_help_panel=SERVER,
        metavar="KIND",
    ),
]
ServerUrl = Annotated[
    str | None,
    typer.Option(
        help="Address of the remote server.",
        envvar=SERVER_URL_VARIABLE,
        rich_help_panel=SERVER,
        metavar="URL",
    ),
]
ServerRepository = Annotated[
    Path | None,
    typer.Option(
        help="Folder that the remote server has as its model repository, as seen from here.",
        rich_help_panel=SERVER,
        metavar="DIR",
    ),
]
ServerPort = Annotated[
    int | None,
    typer.Option(
        help="Port of the server that is started, HTTP or as --protocol says. Default: a free one.",
        rich_help_panel=SERVER,
    ),
]
DockerImage = Annotated[
    str | None,
    typer.Option(help="Image for `--server docker`.", rich_help_panel=SERVER, metavar="IMAGE"),
]
PricePerHour = Annotated[
    float | None,
    typer.Option(help="What this machine costs, in USD.", rich_help_panel=MONEY, metavar="USD"),
]
PriceFile = Annotated[
    Path | None,
    typer.Option(help="Prices to use instead of the packaged ones.", rich_help_panel=MONEY, metavar="FILE"),
]
PriceTerm = Annotated[
    str,
    typer.Option(
        help="How the machine is bought: `on-demand`, `spot`, `1-year` or `3-year`.",
        rich_help_panel=MONEY,
        metavar="TERM",
    ),
]
Rate = Annotated[
    float | None,
    typer.Option(
        help="Traffic to serve, in requests per second: the answer then counts replicas.",
        rich_help_panel=MONEY,
        metavar="PER_S",
    ),
]
PeakRate = Annotated[
    float | None,
    typer.Option(
        help="Highest traffic to be ready for: the bundle's autoscaler goes up to it.",
        rich_help_panel=MONEY,
        metavar="PER_S",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        help="Directory for the run's files. Default: runs/MODEL-TIME.", rich_help_panel=RUN, metavar="DIR"
    ),
]
CacheDir = Annotated[
    Path | None,
    typer.Option(
        help="Directory for built engines, kept between runs. Default: ~/.cache/tritune.",
        rich_help_panel=RUN,
        metavar="DIR",
    ),
]
Resume = Annotated[
    Path | None,
    typer.Option(
        help="Go on with an earlier run's directory. Time budget, price, rates and `--workers` may change; what "
        "its trials were measured with may not.",
        rich_help_panel=RUN,
        metavar="DIR",
    ),
]
TimeBudget = Annotated[
    str,
    typer.Option(
        help="Wall time for the whole run. Where others took the processors, it is extended by what was lost, "
        "once, and by half at most.",
        rich_help_panel=RUN,
        metavar="DURATION",
    ),
]
MaxSendLag = Annotated[
    str | None,
    typer.Option(
        help="How late requests may leave, p99, before a measurement does not count. Default: 1ms, or 5 % of "
        "the limit.",
        rich_help_panel=RUN,
        metavar="DURATION",
    ),
]
Storage = Annotated[
    str | None,
    typer.Option(
        help="Optuna storage URL, such as `postgresql://HOST/DATABASE`. Default: an SQLite file in the run's "
        "directory.",
        envvar=STORAGE_VARIABLE,
        rich_help_panel=RUN,
        metavar="URL",
    ),
]
Study = Annotated[
    str | None,
    typer.Option(
        help="Name of the study in the storage, for its workers. Default: after the run's directory.",
        rich_help_panel=RUN,
        metavar="NAME",
    ),
]
Gpu = Annotated[
    str | None,
    typer.Option(
        help="Part of the name of the GPUs to use, such as `L4`. Default: all.",
        rich_help_panel=RUN,
        metavar="NAME",
    ),
]
Workers = Annotated[
    str | None,
    typer.Option(
        help="`auto`: measure on each GPU of this machine at the same time; or on how many. Default: 1 server "
        "on all.",
        rich_help_panel=RUN,
        metavar="N",
    ),
]
Seed = Annotated[int, typer.Option(help="Seed of all random choices.", rich_help_panel=RUN)]
Baseline = Annotated[
    Path | None,
    typer.Option(
        help="Directory of an earlier run: the exit code is 97 when this one is worse by more than noise.",
        rich_help_panel=RUN,
        metavar="RUN_DIR",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and start nothing.", rich_help_panel=RUN)]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print recommendation.json alone on stdout.", rich_help_panel=RUN),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.", rich_help_panel=RUN)]
Version = Annotated[bool, typer.Option("--version", help="Print the version and leave.")]
