"""The commands that work on the directories of finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loadgen.printable import printable

commands = typer.Typer()

RUN = typer.Argument(help="Output directory of a run.", metavar="RUN_DIR")
RUNS = typer.Argument(help="Output directories of runs of the same model.", metavar="RUN_DIR...")


@commands.command()
def fleet(
    runs: Annotated[list[Path], RUNS],
    rate: Annotated[
        float | None, typer.Option(help="The traffic in requests per second.", metavar="PER_S")
    ] = None,
    price_per_hour: Annotated[
        list[str] | None,
        typer.Option(
            help="Price per hour of a run's machine, instead of the recorded one.", metavar="RUN_DIR=USD"
        ),
    ] = None,
    price_term: Annotated[
        str | None,
        typer.Option(
            help="How machines are bought: `on-demand`, `spot`, `1-year` or `3-year`. Default: as recorded.",
            metavar="TERM",
        ),
    ] = None,
    headroom: Annotated[
        float, typer.Option(help="Share of every replica's certified rate to leave free, 0 to 0.9.")
    ] = 0.0,
    json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON on stdout.")] = False,
) -> None:
    """Find which of the machines that several runs measured serves a rate for the least, and how many it takes.

    `optimize fleet runs/m-on-l4 runs/m-on-cpu --rate 5000`
    """
    from optimizer.command.fleet import fleet_order, plan_fleet

    plan = plan_fleet(
        fleet_order(runs, rate=rate, prices=price_per_hour or [], term=price_term, headroom=headroom)
    )
    if json:
        typer.echo(plan.model_dump_json(indent=2))
        return
    from loadgen.console import SafeConsole
    from optimizer.reports.run_views import fleet_view

    SafeConsole(highlight=False).print(fleet_view(plan))


@commands.command()
def report(
    run: Annotated[Path, RUN],
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print it as Markdown, for a pull request, instead.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option(help="The page. Default: report.html in the run's directory.", metavar="FILE")
    ] = None,
) -> None:
    """Write a run's report: one HTML page that needs no network. A run that found nothing has one as well."""
    from optimizer.reports.report import markdown_report, write_report

    if markdown:
        typer.echo(markdown_report(run), nl=False)
    else:
        typer.echo(printable(str(write_report(run, output=output))))


@commands.command()
def explain(
    run: Annotated[Path, RUN],
    trial: Annotated[int, typer.Argument(help="Number of one of its trials.", metavar="TRIAL")],
    json: Annotated[bool, typer.Option("--json", help="Print the explanation as JSON on stdout.")] = False,
) -> None:
    """Explain a trial: why the run tried it, the prediction, the measurement, and its end."""
    from search.answer.explain import explain_trial

    explanation = explain_trial(run, trial)
    if json:
        typer.echo(explanation.model_dump_json(indent=2))
        return
    from loadgen.console import SafeConsole
    from optimizer.reports.run_views import explanation_view

    SafeConsole(highlight=False).print(explanation_view(explanation))


@commands.command()
def compare(
    before: Annotated[Path, typer.Argument(help="Output directory of the earlier run.", metavar="RUN_A")],
    now: Annotated[Path, typer.Argument(help="Output directory of the later run.", metavar="RUN_B")],
    tolerance: Annotated[
        float, typer.Option(help="Differences of a share below this are never called worse or better.")
    ] = 0.02,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, for a pull request.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON on stdout.")] = False,
) -> None:
    """Compare two runs under one limit: capacity, p99, cost and accuracy, with confidence intervals.

    Exit codes: 0 not worse, 97 worse by more than the uncertainties of both, 2 bad input.
    """
    from optimizer.reports.compare import compare_directories, comparison_markdown, comparison_view, exit_code_of

    comparison = compare_directories(before, now, tolerance=tolerance)
    if json:
        typer.echo(comparison.model_dump_json(indent=2))
    elif markdown:
        typer.echo(comparison_markdown(comparison), nl=False)
    else:
        from loadgen.console import SafeConsole

        SafeConsole(highlight=False).print(comparison_view(comparison))
    raise typer.Exit(exit_code_of(comparison))


@commands.command()
def bundle(
    run: Annotated[Path, RUN],
    target: Annotated[
        str, typer.Option(help="`kubernetes`, `kserve`, `compose` or `all`.", metavar="TARGET")
    ] = "all",
    rate: Annotated[
        float | None,
        typer.Option(help="Usual traffic, in requests per second. Default: the run's.", metavar="PER_S"),
    ] = None,
    peak_rate: Annotated[
        float | None,
        typer.Option(help="Peak traffic. Default: the run's, else twice the rate.", metavar="PER_S"),
    ] = None,
    ramp: Annotated[
        str | None,
        typer.Option(help="Time in which traffic grows to its peak. Default: 10m.", metavar="DURATION"),
    ] = None,
    replica_start: Annotated[
        str | None,
        typer.Option(help="Time until a new replica is ready. Default: as measured.", metavar="DURATION"),
    ] = None,
    max_replicas: Annotated[
        int | None, typer.Option(help="The most replicas that there may be. Default: 100.", metavar="N")
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(help="Image of Triton's native backends. Default: the release that fits.", metavar="IMAGE"),
    ] = None,
    registry: Annotated[
        str | None,
        typer.Option(help="Where you push the bundle's images. Default: names without one.", metavar="REGISTRY"),
    ] = None,
    prometheus_release: Annotated[
        str | None,
        typer.Option(help="Label `release` that kube-prometheus-stack selects. Default: none.", metavar="NAME"),
    ] = None,
    loadtest_image: Annotated[
        str | None, typer.Option(help="Image of the smoke test, as you pushed it.", metavar="IMAGE")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder to write. Default: bundle in the run's directory.", metavar="DIR")
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Write even if the folder holds other files: they are moved to DIR.old next to it."
        ),
    ] = False,
) -> None:
    """Render a run's recommendation as deployment files: Triton, autoscaling, alerts, dashboard, smoke test."""
    from optimizer.run.bundle import bundle_options, show_bundle

    options = bundle_options(
        rate=rate,
        peak_rate=peak_rate,
        ramp=ramp,
        replica_start=replica_start,
        max_replicas=max_replicas,
        image=image,
        registry=registry,
        prometheus_release=prometheus_release,
    )
    show_bundle(run, target=target, options=options, loadtest_image=loadtest_image, output=output, force=force)
