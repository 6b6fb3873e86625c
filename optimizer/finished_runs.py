"""The commands that work on the directories of finished runs."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads the annotations at run time
from typing import Annotated

import typer

commands = typer.Typer()

RUNS = typer.Argument(help="Output directories of runs of the same model.", metavar="RUN_DIR...")


@commands.command()
def fleet(
    runs: Annotated[list[Path], RUNS],
    rate: Annotated[
        float | None, typer.Option(help="Constant traffic in requests per second.", metavar="PER_S")
    ] = None,
    traffic: Annotated[
        Path | None,
        typer.Option(
            help="Traffic over a day: a CSV of `time,rate_per_s`; a rate holds until the next line.",
            metavar="FILE",
        ),
    ] = None,
    price_per_hour: Annotated[
        list[str] | None,
        typer.Option(help="What a run's machine costs instead of its recorded price.", metavar="RUN_DIR=USD"),
    ] = None,
    price_term: Annotated[
        list[str] | None,
        typer.Option(
            help="How machines may be bought: `on-demand`, `spot`, `1-year`, `3-year`; several are mixed. "
            "Default: as recorded.",
            metavar="TERM",
        ),
    ] = None,
    at_most: Annotated[
        list[str] | None,
        typer.Option(help="How many machines of a run there are at most.", metavar="RUN_DIR=COUNT"),
    ] = None,
    headroom: Annotated[
        float, typer.Option(help="Share of every replica's certified rate to leave free, 0 to 0.9.")
    ] = 0.0,
    json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON on stdout.")] = False,
) -> None:
    """Find the cheapest mix of the machines that several runs measured, for a rate or a day's traffic.

    `optimize fleet runs/m-on-l4 runs/m-on-cpu --traffic day.csv`
    """
    from optimizer.fleet import plan_fleet
    from optimizer.fleet_arguments import fleet_order

    plan = plan_fleet(
        fleet_order(
            runs,
            rate=rate,
            traffic=traffic,
            prices=price_per_hour or [],
            terms=price_term or [],
            at_most=at_most or [],
            headroom=headroom,
        )
    )
    if json:
        typer.echo(plan.model_dump_json(indent=2))
        return
    from rich.console import Console

    from optimizer.fleet_view import fleet_view

    Console(highlight=False).print(fleet_view(plan))
