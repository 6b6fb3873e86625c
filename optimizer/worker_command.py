"""The `optimize worker` command: arguments in, exit code out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from optimizer.options import STORAGE_VARIABLE

if TYPE_CHECKING:
    from model_repo.options import ServerKind

commands = typer.Typer()


@commands.command()
def worker(
    context: typer.Context,
    study: Annotated[str, typer.Option(help="The study's name, as the search says it.", metavar="NAME")],
    storage: Annotated[
        str | None,
        typer.Option(
            help="The search's storage, such as `postgresql://HOST/DATABASE`.",
            envvar=STORAGE_VARIABLE,
            metavar="URL",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="The search's model, as it is called on this machine.", metavar="MODEL"),
    ] = None,
    input_data: Annotated[
        Path | None, typer.Option(help="The same for the load's inputs, if the search has some.", metavar="FILE")
    ] = None,
    calibration_data: Annotated[
        Path | None, typer.Option(help="The same for the calibration's inputs.", metavar="PATH")
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="The same for the recorded arrivals.", metavar="FILE")] = None,
    server: Annotated[
        str, typer.Option(help="The search's kind of server: `embedded`, `local` or `docker`.", metavar="KIND")
    ] = "embedded",
    docker_image: Annotated[str | None, typer.Option(help="Image for `--server docker`.", metavar="IMAGE")] = None,
    gpu: Annotated[
        str | None,
        typer.Option(help="Part of the name of the GPUs to use, such as `L4`. Default: all.", metavar="NAME"),
    ] = None,
    workers: Annotated[str, typer.Option(help="`auto`: a worker for each GPU; or how many.", metavar="N")] = "1",
    output: Annotated[
        Path | None,
        typer.Option(help="Directory for this worker's files. Default: runs/worker-STUDY-TIME.", metavar="DIR"),
    ] = None,
    cache_dir: Annotated[
        Path | None, typer.Option(help="Directory for built engines. Default: ~/.cache/tritune.", metavar="DIR")
    ] = None,
    idle: Annotated[
        str, typer.Option(help="How long to wait for something to do before leaving.", metavar="DURATION")
    ] = "10m",
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Measure for a search that runs elsewhere, on hardware like its own, until it is over.

    `TRITUNE_STORAGE=postgresql://... optimize worker --study NAME --model MODEL`

    The storage says what to measure and how. Code, images and files are named by these options alone.

    Exit codes: 0 the search is over, 2 bad input, 3 a disk, a server or the storage failed, 130 interrupted,
    1 a bug.
    """
    from datetime import datetime

    from loadgen.units import duration_ms
    from optimizer.arguments import checked_storage, given_as_argument
    from optimizer.errors import BadInput
    from optimizer.worker import WorkerOptions, work

    del debug  # read from the arguments by `run_app`
    url = checked_storage(storage, in_arguments=given_as_argument(context, "storage"))
    if url is None:
        raise BadInput("No storage was given.", "Set TRITUNE_STORAGE, or add --storage postgresql://HOST/DATABASE")
    if model is None:
        raise BadInput(
            "No model was given, and a worker takes no file names from the storage.",
            "Add --model with the search's model, as it is called on this machine.",
        )
    idle_ms, _ = duration_ms(idle, option="--idle", default_unit="s")
    now = f"{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    finished = work(
        WorkerOptions(
            storage=url,
            study=study,
            output=(output or Path("runs") / f"worker-{study}-{now}").absolute(),
            model=model,
            input_data=input_data,
            calibration_data=calibration_data,
            trace=trace,
            server=_kind(server),
            docker_image=docker_image,
            cache_dir=cache_dir,
            gpu=gpu,
            workers=workers,
            idle_s=idle_ms / 1000,
        )
    )
    typer.echo(f"{finished} trial{'' if finished == 1 else 's'} measured")


def _kind(server: str) -> ServerKind:
    from model_repo.launchers import LAUNCHERS
    from optimizer.errors import BadInput

    for kind in LAUNCHERS:
        if kind == server:
            return kind
    raise BadInput(f"--server {server} is none that a worker can start.", f"Choose one of {', '.join(LAUNCHERS)}.")
