"""The `optimize` command: arguments in, exit code out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from loadgen.command import leave, run_app, show_version
from optimizer import options
from optimizer.finished_runs import commands
from optimizer.worker_command import commands as worker_commands

app = typer.Typer(
    add_completion=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def optimize(
    context: typer.Context,
    model: options.Model = None,
    shape: options.Shape = None,
    input_data: options.InputData = None,
    arrivals: options.Arrivals = None,
    trace: options.Trace = None,
    client_batch: options.ClientBatch = 1,
    protocol: options.Protocol = "http",
    shared_memory: options.SharedMemory = "none",
    precisions: options.Precisions = None,
    calibration_data: options.CalibrationData = None,
    calibration_method: options.CalibrationMethod = "percentile",
    accuracy: options.Accuracy = "strict",
    io_precision: options.IoPrecision = "keep",
    p99: options.P99 = None,
    p50: options.P50 = None,
    p90: options.P90 = None,
    p95: options.P95 = None,
    p999: options.P999 = None,
    max_memory: options.MaxMemory = None,
    confidence: options.Confidence = 0.95,
    objective: options.Objective = "cost",
    pareto: options.Pareto = False,
    server: options.Server = "embedded",
    server_url: options.ServerUrl = None,
    server_repository: options.ServerRepository = None,
    server_port: options.ServerPort = None,
    docker_image: options.DockerImage = None,
    price_per_hour: options.PricePerHour = None,
    price_file: options.PriceFile = None,
    price_term: options.PriceTerm = "on-demand",
    rate: options.Rate = None,
    peak_rate: options.PeakRate = None,
    output: options.Output = None,
    cache_dir: options.CacheDir = None,
    resume: options.Resume = None,
    time_budget: options.TimeBudget = "10m",
    max_send_lag: options.MaxSendLag = None,
    storage: options.Storage = None,
    study: options.Study = None,
    gpu: options.Gpu = None,
    workers: options.Workers = None,
    seed: options.Seed = 0,
    baseline: options.Baseline = None,
    dry_run: options.DryRun = False,
    json: options.Json = False,
    debug: options.Debug = False,
    version: options.Version = False,
) -> None:
    """Find the cheapest Triton configuration that keeps a p99 latency limit.

    `optimize --model m.onnx --p99 50ms`

    Exit codes: 0 found, 97 worse than --baseline, 99 no configuration keeps the limit, 2 bad input,
    3 a disk, a server or a storage failed, 130 interrupted, 1 a bug.
    """
    if context.invoked_subcommand is not None:
        return
    if version:
        show_version()
        return
    from optimizer.arguments import checked_storage, config_from_arguments, given_as_argument, given_options
    from optimizer.resuming import resumed_config

    storage = checked_storage(storage, in_arguments=given_as_argument(context, "storage"))
    further = {"p50": p50, "p90": p90, "p95": p95, "p999": p999}
    if resume is not None:
        given = given_options(context)
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
            calibration_method=calibration_method,
            accuracy=accuracy,
            io_precision=io_precision,
            arrivals=arrivals,
            trace=trace,
            client_batch=client_batch,
            protocol=protocol,
            shared_memory=shared_memory,
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
    grpc_port: Annotated[int | None, typer.Option(help="gRPC port. Default: a free one.")] = None,
    shared_memory: Annotated[
        str,
        typer.Option(help="`system`: takes inputs in /dev/shm from this user's `loadtest`.", metavar="KIND"),
    ] = "none",
) -> None:
    """Serve a run's recommendation on this machine until Ctrl-C, to try it or to load-test it.

    This runs the code in DIR as you: serve only what you trust.
    """
    from optimizer.serving import serve_run

    serve_run(run, server=server, port=port, grpc_port=grpc_port, shared_memory=shared_memory)


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
