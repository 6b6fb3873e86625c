"""The `loadtest` command: options in, exit code out."""

from __future__ import annotations

import inspect
import os
import sys

import typer

from loadgen.command.app import check_address_space, leave, run_app, show_version
from loadgen.errors import BadInput
from loadgen.exit_codes import exit_codes_help
from loadgen.options.command import Values, command_from, completion_script
from loadgen.options.declare import made_of, option_fields
from loadgen.options.load_test import LoadTestOptions
from loadgen.options.sources import Origins, note_on

OPTIONS = option_fields(LoadTestOptions)

app = typer.Typer(
    add_completion=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,  # its tracebacks could show header values
)


def loadtest(values: Values, origins: Origins) -> None:
    """Load a model on a Triton server, and report whether it meets a latency limit.

    `loadtest http://localhost:8000 --model resnet50 --rate 200 --p99 50ms`

    With --api, the server is one that streams tokens, and the limits are --ttft-p95, --tpot-p95 and the like.
    """
    if values["version"]:
        show_version()
        return
    assumed: list[str] = []
    options = made_of(LoadTestOptions, values, assumed.append)
    if options.print_completion is not None:
        command = typer.main.get_command(app)
        typer.echo(completion_script("loadtest", command, OPTIONS, options.print_completion), nl=False)
        return
    if options.quiet and options.verbose:
        raise BadInput("--quiet and --verbose contradict each other.", "Leave one of them out.")
    check_address_space("loadtest")
    if options.worker is not None:
        from loadgen.command.arguments import worker_from_options
        from loadgen.distributed.launch import work_on_all

        rights = worker_from_options(options, os.environ)
        work_on_all(options.worker, options.port, rights, processes=options.processes)
        return
    fleet = None
    if options.master:
        # It brings in Locust, which replaces parts of the standard library: before anything else uses them.
        from loadgen.distributed.master import DistributedGenerator

        fleet = DistributedGenerator(host=options.bind, port=options.port, workers=options.expect_workers)
    from loadgen.command import run
    from loadgen.command.arguments import order_from_options
    from loadgen.spec.load_test import Note

    order, notes = order_from_options(options, os.environ)
    notes = [Note(text=text) for text in (*assumed, *note_on(origins))] + notes
    raise typer.Exit(run.run(order, notes, options, fleet))


loadtest.__doc__ = f"{inspect.getdoc(loadtest)}\n\n{exit_codes_help()}"
app.command()(command_from("loadtest", OPTIONS, loadtest, short=True))


def main() -> None:
    """Entry point of the console command."""
    leave(run_command(sys.argv[1:]))


def run_command(arguments: list[str]) -> int:
    """Run the command line and return its exit code; no exception leaves."""
    return run_app(app, arguments, name="loadtest", when_stopped="Nothing was measured.")


if __name__ == "__main__":
    main()
