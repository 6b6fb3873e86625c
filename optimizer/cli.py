"""The `optimize` command: arguments in, exit code out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from loadgen.command import leave, run_app
from optimizer.finished_runs import commands
from optimizer.worker_command import commands as worker_commands

app = typer.Typer(
    add_completion=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)

TRAFFIC = "Traffic"
MODEL, LIMIT, SERVER, MONEY, RUN = "Model", "Limit", "Server", "Money", "Run"
STORAGE_VARIABLE = "TRITUNE_STORAGE"


@app.callback(invoke_without_command=True)
def optimize(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Option(
            help="An ONNX file, a PyTorch ExportedProgram (`.pt2`), or `package.module:factory`, a callable that "
            "returns a PyTorch module and example inputs.",
            rich_help_panel=MODEL,
            metavar="MODEL",
        ),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            help="Sizes of an input's dimensions without the batch, such as `input_ids:128`. Repeatable.",
            rich_help_panel=MODEL,
            metavar="NAME:D1,D2",
        ),
    ] = None,
    input_data: Annotated[
        Path | None,
        typer.Option(
            help="Real inputs for the load, an .npz or .json file with several samples.",
            rich_help_panel=MODEL,
            metavar="FILE",
        ),
    ] = None,
    arrivals: Annotated[
        str | None,
        typer.Option(
            help="How requests come in: `poisson` (independent users), `constant`, or `gamma:cv=2` (bursts).",
            rich_help_panel=TRAFFIC,
            metavar="KIND",
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Recorded arrivals, a time in seconds a line; played faster or slower to make each rate.",
            rich_help_panel=TRAFFIC,
            metavar="FILE",
        ),
    ] = None,
    client_batch: Annotated[
        int, typer.Option(help="Rows that every request carries.", rich_help_panel=TRAFFIC, metavar="N")
    ] = 1,
    precisions: Annotated[
        str | None,
        typer.Option(
            help="Of fp32, tf32, fp16, bf16, int8, fp8, those that compete. Default: fp32 on a CPU, "
            "fp32,tf32,fp16,bf16 on a GPU.",
            rich_help_panel=MODEL,
            metavar="P1,P2",
        ),
    ] = None,
    calibration_data: Annotated[
        Path | None,
        typer.Option(
            help="Typical inputs for int8 and fp8: an .npz with an array per input, or a folder of INPUT.npy.",
            rich_help_panel=MODEL,
            metavar="PATH",
        ),
    ] = None,
    accuracy: Annotated[
        str,
        typer.Option(
            help="How close to fp32 a precision must come: `strict`, `standard` or `off`, and changes such as "
            "`strict,sqnr_db=30`.",
            rich_help_panel=MODEL,
            metavar="LEVEL",
        ),
    ] = "strict",
    io_precision: Annotated[
        str,
        typer.Option(
            help="`keep`, or `fp16` for inputs and outputs of that type where fp16 is computed.",
            rich_help_panel=MODEL,
            metavar="TYPE",
        ),
    ] = "keep",
    p99: Annotated[
        str | None,
        typer.Option(
            help="Latency that 99 % of all requests must keep, such as `50ms` or `0.2s`.",
            rich_help_panel=LIMIT,
            metavar="DURATION",
        ),
    ] = None,
    p50: Annotated[
        str | None,
        typer.Option(
            help="The same for half of them. Several limits are kept together.",
            rich_help_panel=LIMIT,
            metavar="DURATION",
        ),
    ] = None,
    p90: Annotated[
        str | None, typer.Option(help="The same for 90 %.", rich_help_panel=LIMIT, metavar="DURATION")
    ] = None,
    p95: Annotated[
        str | None, typer.Option(help="The same for 95 %.", rich_help_panel=LIMIT, metavar="DURATION")
    ] = None,
    p999: Annotated[
        str | None, typer.Option(help="The same for 99.9 %.", rich_help_panel=LIMIT, metavar="DURATION")
    ] = None,
    max_memory: Annotated[
        str | None,
        typer.Option(
            help="Memory that the server may take with the model, such as `8GiB`.",
            rich_help_panel=LIMIT,
            metavar="SIZE",
        ),
    ] = None,
    confidence: Annotated[
        float, typer.Option(help="Confidence of the promise, 0.8 to 0.999.", rich_help_panel=LIMIT)
    ] = 0.95,
    objective: Annotated[
        str,
        typer.Option(
            help="What is best within the limits: `cost` (with --rate, the fewest replicas), `latency` (the least "
            "while one replica answers --rate) or `energy` (the GPUs' least per inference).",
            rich_help_panel=LIMIT,
            metavar="WHAT",
        ),
    ] = "cost",
    pareto: Annotated[
        bool,
        typer.Option(
            "--pareto", help="Keep and show the frontier of rate and latency of all trials.", rich_help_panel=LIMIT
        ),
    ] = False,
    server: Annotated[
        str,
        typer.Option(
            help="`embedded` (the server of the `embedded` extra), `local` (tritonserver on PATH), `docker` "
            "(NVIDIA's image) or `remote` (a running server).",
            rich_help_panel=SERVER,
            metavar="KIND",
        ),
    ] = "embedded",
    server_url: Annotated[
        str | None,
        typer.Option(
            help="Address of the remote server.",
            envvar="TRITUNE_SERVER_URL",
            rich_help_panel=SERVER,
            metavar="URL",
        ),
    ] = None,
    server_repository: Annotated[
        Path | None,
        typer.Option(
            help="Folder that the remote server has as its model repository, as seen from here.",
            rich_help_panel=SERVER,
            metavar="DIR",
        ),
    ] = None,
    server_port: Annotated[
        int | None,
        typer.Option(help="HTTP port of the server that is started. Default: a free one.", rich_help_panel=SERVER),
    ] = None,
    docker_image: Annotated[
        str | None,
        typer.Option(help="Image for `--server docker`.", rich_help_panel=SERVER, metavar="IMAGE"),
    ] = None,
    price_per_hour: Annotated[
        float | None,
        typer.Option(help="What this machine costs, in USD.", rich_help_panel=MONEY, metavar="USD"),
    ] = None,
    price_file: Annotated[
        Path | None,
        typer.Option(help="Prices to use instead of the packaged ones.", rich_help_panel=MONEY, metavar="FILE"),
    ] = None,
    price_term: Annotated[
        str,
        typer.Option(
            help="How the machine is bought: `on-demand`, `spot`, `1-year` or `3-year`.",
            rich_help_panel=MONEY,
            metavar="TERM",
        ),
    ] = "on-demand",
    rate: Annotated[
        float | None,
        typer.Option(
            help="Traffic to serve, in requests per second: the answer then counts replicas.",
            rich_help_panel=MONEY,
            metavar="PER_S",
        ),
    ] = None,
    peak_rate: Annotated[
        float | None,
        typer.Option(
            help="Highest traffic to be ready for: the bundle's autoscaler goes up to it.",
            rich_help_panel=MONEY,
            metavar="PER_S",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Directory for the run's files. Default: runs/MODEL-TIME.", rich_help_panel=RUN, metavar="DIR"
        ),
    ] = None,
    cache_dir: Annotated[
        Path | None,
        typer.Option(
            help="Directory for built engines, kept between runs. Default: ~/.cache/tritune.",
            rich_help_panel=RUN,
            metavar="DIR",
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(help="Go on with an earlier run's directory.", rich_help_panel=RUN, metavar="DIR"),
    ] = None,
    time_budget: Annotated[
        str,
        typer.Option(help="Wall time for the whole run.", rich_help_panel=RUN, metavar="DURATION"),
    ] = "10m",
    max_send_lag: Annotated[
        str | None,
        typer.Option(
            help="How late requests may leave, p99, before a measurement does not count. Default: 1ms, or 5 % of "
            "the limit.",
            rich_help_panel=RUN,
            metavar="DURATION",
        ),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            help="Optuna storage URL, such as `postgresql://HOST/DATABASE`. Default: an SQLite file in the run's "
            "directory.",
            envvar=STORAGE_VARIABLE,
            rich_help_panel=RUN,
            metavar="URL",
        ),
    ] = None,
    study: Annotated[
        str | None,
        typer.Option(
            help="Name of the study in the storage, for its workers. Default: after the run's directory.",
            rich_help_panel=RUN,
            metavar="NAME",
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            help="Part of the name of the GPUs to use, such as `L4`. Default: all.",
            rich_help_panel=RUN,
            metavar="NAME",
        ),
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option(
            help="`auto`: measure on each GPU of this machine at the same time; or on how many. Default: 1 server "
            "on all.",
            rich_help_panel=RUN,
            metavar="N",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of all random choices.", rich_help_panel=RUN)] = 0,
    baseline: Annotated[
        Path | None,
        typer.Option(
            help="Directory of an earlier run: the exit code is 97 when this one is worse by more than noise.",
            rich_help_panel=RUN,
            metavar="RUN_DIR",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and start nothing.", rich_help_panel=RUN)
    ] = False,
    json: Annotated[
        bool,
        typer.Option("--json", help="Print recommendation.json alone on stdout.", rich_help_panel=RUN),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.", rich_help_panel=RUN)] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    """Find the cheapest Triton configuration that keeps a p99 latency limit.

    `optimize --model m.onnx --p99 50ms`

    Exit codes: 0 found, 97 worse than --baseline, 99 no configuration keeps the limit, 2 bad input,
    130 interrupted, 1 a bug.
    """
    if context.invoked_subcommand is not None:
        return
    if version:
        from importlib.metadata import version as installed_version

        typer.echo(f"tritune {installed_version('tritune')}")
        return
    from optimizer.arguments import checked_storage, config_from_arguments, given_as_argument, resumed_config

    storage = checked_storage(storage, in_arguments=given_as_argument(context, "storage"))
    further = {"p50": p50, "p90": p90, "p95": p95, "p999": p999}
    if resume is not None:
        given = {"--model": model, "--p99": p99, "--output": output, "--max-memory": max_memory}
        given |= {f"--{name}": value for name, value in further.items()}
        config, notes = resumed_config(resume, given=given, storage=storage, server_url=server_url)
    else:
        config, notes = config_from_arguments(
            model=model,
            p99=p99,
            further_limits=further,
            max_memory=max_memory,
            objective=objective,
            pareto=pareto,
            shapes=shape or [],
            input_data=input_data,
            confidence=confidence,
            server=server,
            server_url=server_url,
            server_repository=server_repository,
            server_port=server_port,
            docker_image=docker_image,
            price_per_hour=price_per_hour,
            price_file=price_file,
            price_term=price_term,
            rate=rate,
            peak_rate=peak_rate,
            output=output,
            cache_dir=cache_dir,
            time_budget=time_budget,
            max_send_lag=max_send_lag,
            storage=storage,
            study=study,
            gpu=gpu,
            workers=workers or "1",
            seed=seed,
            precisions=precisions,
            calibration_data=calibration_data,
            accuracy=accuracy,
            io_precision=io_precision,
            arrivals=arrivals,
            trace=trace,
            client_batch=client_batch,
        )
    from optimizer import session

    del debug  # read from the arguments by `run_app`, which also covers errors before this point
    if dry_run:
        session.show_plan(config, notes)
    else:
        code = session.run(config, notes, as_json=json, resume=resume is not None, baseline=baseline)
        raise typer.Exit(code)


@app.command()
def doctor() -> None:
    """Say what this machine can do, and the command that adds what is missing."""
    from optimizer.doctor import show_diagnosis

    show_diagnosis()


@app.command()
def serve(
    run: Annotated[Path, typer.Argument(help="Output directory of a run, or a model repository.", metavar="DIR")],
    server: Annotated[str, typer.Option(help="`embedded`, `local` or `docker`.", metavar="KIND")] = "embedded",
    port: Annotated[int | None, typer.Option(help="HTTP port. Default: a free one.")] = None,
) -> None:
    """Serve a run's recommendation on this machine until Ctrl-C, to try it or to load-test it."""
    from optimizer.serving import serve_run

    serve_run(run, server=server, port=port)


app.add_typer(commands)
app.add_typer(worker_commands)


def main() -> None:
    """Entry point of the console command."""
    leave(run_command(sys.argv[1:]))


def run_command(arguments: list[str]) -> int:
    """Run the command line and return its exit code; no exception leaves."""
    return run_app(
        app, arguments, name="optimize", when_stopped="Go on later with --resume and the run's directory."
    )
