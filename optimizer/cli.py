"""The `optimize` command: options in, exit code out."""

from __future__ import annotations

import inspect
import os
import sys
from datetime import datetime
from pathlib import Path

import typer

from loadgen.command.app import check_address_space, leave, run_app, show_version
from loadgen.errors import BadInput, UserError
from loadgen.exit_codes import exit_codes_help
from loadgen.options.command import Values, command_from, completion_script
from loadgen.options.declare import made_of
from loadgen.options.sources import Origins
from loadgen.spec.limits import LatencyLimit
from optimizer.call_options import OF_A_WORKER, OPTIONS, CallOptions, WorkerCall
from optimizer.child import TELEMETRY
from optimizer.command.finished_runs import commands
from optimizer.config import OptimizeConfig
from optimizer.errors import WHEN_STOPPED

app = typer.Typer(
    add_completion=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def optimize(values: Values, origins: Origins) -> None:
    """Find the cheapest Triton configuration that meets a p99 latency limit.

    `optimize --model m.onnx --p99 50ms`
    """
    call = made_of(CallOptions, values, str)
    if call.version:
        show_version()
        return
    if call.print_completion is not None:
        command = typer.main.get_command(app)
        typer.echo(completion_script("optimize", command, OPTIONS, call.print_completion), nl=False)
        return
    if call.quiet and call.verbose:
        raise BadInput("--quiet and --verbose contradict each other.", "Leave one of them out.")
    check_address_space("optimize")
    from optimizer.command.arguments import config_of_call

    config, notes = config_of_call(call, values, origins)
    from optimizer.command import session

    if call.dry_run:
        session.show_plan(config, notes, call)
        return
    raise typer.Exit(session.run(config, notes, call))


optimize.__doc__ = f"{inspect.getdoc(optimize)}\n\n{exit_codes_help()}"
app.callback(invoke_without_command=True)(command_from("optimize", OPTIONS, optimize, short=True))


@app.command()
def doctor() -> None:
    """Report the abilities of this machine, and the commands that add missing ones."""
    from optimizer.machine.doctor import show_diagnosis

    show_diagnosis()


def worker(values: Values, origins: Origins) -> None:
    """Measure for a search that runs elsewhere, on hardware like its own, until it is over.

    `TRITUNE_STORAGE=postgresql://... optimize worker --study NAME --model MODEL`

    The storage holds the configurations to measure. Code, images and files come from these options alone.

    Exit codes: 0 the search is over, 2 bad input, 3 a disk, a server or the storage failed, 130 interrupted,
    1 a bug.
    """
    check_address_space("optimize")
    from optimizer.command.arguments import check_storage
    from optimizer.run.workers import work

    study = values["study"]
    if study is None:
        raise BadInput("No study was given.", "Add --study NAME, as the search prints it.")
    check_storage(values["storage"], origins)
    if values["storage"] is None:
        raise BadInput("No storage was given.", "Set TRITUNE_STORAGE, or add --storage postgresql://HOST/DATABASE")
    if values["model"] is None:
        raise BadInput(
            "No model was given, and a worker takes no file names from the storage.",
            "Add --model with the search's model, as it is called on this machine.",
        )
    output = values["output"] or Path("runs") / f"worker-{study}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    call = made_of(WorkerCall, values, str, output=output.absolute())
    limits = (LatencyLimit(limit_ms=1.0),)  # the study's come later
    finished = work(call, made_of(OptimizeConfig, values, str, output=call.output, limits=limits))
    typer.echo(f"{finished} trial{'' if finished == 1 else 's'} measured")


app.command()(command_from("worker", OF_A_WORKER, worker))
app.add_typer(commands)


def main() -> None:
    """Run the console command and exit with its exit code."""
    leave(run_command(sys.argv[1:]))


def run_command(arguments: list[str]) -> int:
    """Run the command line and return its exit code; no exception leaves."""
    os.environ.setdefault(TELEMETRY, "1")
    return run_app(app, arguments, name="optimize", when_stopped=WHEN_STOPPED, on_failure=_print_failure)


def _print_failure(failure: UserError, asked: Values) -> None:
    """Print `recommendation.json` of a run that failed, on stdout, if it was asked for."""
    if not asked["json"]:
        return
    from loadgen.console import print_result
    from optimizer.run.recommendation import failure_record

    print_result(lambda: failure_record(failure).model_dump_json(indent=2) + "\n")


if __name__ == "__main__":
    main()
