"""The commands that work on the directories of finished runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer

from loadgen.errors import BadInput
from loadgen.options.command import Values, command_from
from loadgen.options.declare import made_of, option, option_fields
from loadgen.options.sources import Origins
from loadgen.printable import printable
from optimizer.call_options import AutoscaleOptions, ProfileOptions, RestoreOptions, ServeOptions
from search.choices import Term

if TYPE_CHECKING:  # slow to import
    from pydantic import BaseModel
    from rich.console import RenderableType

commands = typer.Typer()
Options = TypeVar("Options")


def _named(directory: Path) -> Path:
    from search.records.run_files import named_run

    return named_run(directory)


RUN = typer.Argument(
    help="Output directory of a run; `latest`: that of the last one in runs/.", metavar="RUN_DIR", callback=_named
)
BEST = "best"
MAX_REPLICAS = 1_000_000


def command(options: type[Options]) -> Callable[[Callable[[Options], None]], Callable[[Options], None]]:
    """Make a subcommand of the function below, which takes these options once they are checked."""

    def register(run: Callable[[Options], None]) -> Callable[[Options], None]:
        def called(values: Values, _origins: Origins) -> None:
            run(made_of(options, values, str))

        called.__name__, called.__doc__ = run.__name__, run.__doc__
        commands.command()(command_from(run.__name__, option_fields(options), called))
        return run

    return register


def _show(record: BaseModel, view: Callable[[], RenderableType] | None) -> None:
    """Print a record on stdout: its view or, without one, its JSON. Raises UserError if that fails."""
    from loadgen.console import print_result

    for problem in print_result(lambda: record.model_dump_json(indent=2) + "\n", view):
        raise problem


@command(ServeOptions)
def serve(given: ServeOptions) -> None:
    """Serve a run's recommendation on this machine until Ctrl-C, to try it or to load-test it.

    This runs the code in DIR as you: serve only what you trust.
    """
    from optimizer.command.serve import serve_run

    serve_run(given)


@command(ProfileOptions)
def profile(given: ProfileOptions) -> None:
    """Serve a run's recommendation, send it its rate for two seconds, and show where the time goes.

    The trace file is for https://ui.perfetto.dev or chrome://tracing. This runs the code in RUN_DIR as you.
    """
    from optimizer.command.profile import profile_run

    profile_run(given)


@command(AutoscaleOptions)
def autoscale(given: AutoscaleOptions) -> None:
    """Replay a day of traffic on a run's recommendation, and find the cheapest settings of its autoscaler.

    `optimize autoscale latest --traffic day.csv`
    """
    from optimizer.command.autoscale import autoscale_run

    autoscale_run(given)


@command(RestoreOptions)
def restore(given: RestoreOptions) -> None:
    """Give the models of remote servers their own configurations back, after a run that was killed."""
    from optimizer.command.serve import restore_servers

    restore_servers(given)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """The options of `optimize fleet`."""

    runs: tuple[Path, ...] = option(
        "Output directories of runs of the same model.", "RUN_DIR...", default=(), argument=True
    )
    rate: float | None = option("The traffic in requests per second.", "PER_S", positive=True)
    price_per_hour: tuple[str, ...] = option(
        "Price per hour of a run's machine, instead of the recorded one.", "RUN_DIR=USD", default=()
    )
    price_term: Term | None = option(
        "How machines are bought: `on-demand`, `spot`, `1-year` or `3-year`. Default: as recorded.", "TERM"
    )
    headroom: float = option(
        "Share of every replica's certified rate to leave free, 0 to 0.9.", default=0.0, bounds=(0.0, 0.9)
    )
    json: bool = option("Print the plan as JSON on stdout.", default=False)


@command(FleetOptions)
def fleet(given: FleetOptions) -> None:
    """Find which of the machines that several runs measured serves a rate for the least, and how many it takes.

    `optimize fleet runs/m-on-l4 runs/m-on-cpu --rate 5000`
    """
    from optimizer.command.fleet import plan_fleet
    from optimizer.reports.terminal import fleet_view

    if given.rate is None:
        raise BadInput("A fleet is for some traffic, and none was given.", "Add --rate PER_S")
    plan = plan_fleet(
        tuple(map(_named, given.runs)),
        rate_per_s=given.rate,
        prices=given.price_per_hour,
        term=given.price_term,
        headroom=given.headroom,
    )
    _show(plan, None if given.json else partial(fleet_view, plan))


@commands.command()
def report(
    run: Annotated[Path, RUN],
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print it as Markdown, for a pull request, instead.")
    ] = False,
    csv: Annotated[
        bool, typer.Option("--csv", help="Write the trials as CSV, in Model Analyzer's columns, instead.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(help="The file. Default: report.html or trials.csv in the run's directory.", metavar="FILE"),
    ] = None,
) -> None:
    """Write a run's report: one HTML page that needs no network. A run that found nothing has one as well."""
    from optimizer.reports.report import markdown_report, write_report

    if markdown and (csv or output is not None):
        raise BadInput(
            f"--markdown prints the report, so {'--csv' if csv else '--output'} does not go with it.",
            "Leave one of them out.",
        )
    if markdown:
        typer.echo(markdown_report(run), nl=False)
    else:
        typer.echo(printable(str(write_report(run, output=output, csv=csv))))


@commands.command()
def explain(
    run: Annotated[Path, RUN],
    trial: Annotated[
        str, typer.Argument(help="Number of one of its trials; `best`: the recommendation.", metavar="[TRIAL]")
    ] = BEST,
    rate: Annotated[
        bool, typer.Option("--rate", help="Explain the certified rate instead: every load run in its order.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the explanation as JSON on stdout.")] = False,
) -> None:
    """Explain the recommendation or a trial: why it was tried, the prediction, the measurement, and its end."""
    from optimizer.reports.terminal import explanation_view, rate_view
    from search.answer.explain import explain_rate, explain_trial
    from search.records.run_files import read_recommendation

    if rate and trial != BEST:
        raise BadInput(f"--rate does not go with a trial, {trial} here.", "Leave one of them out.")
    if rate:
        of_rate = explain_rate(run)
        _show(of_rate, None if json else partial(rate_view, of_rate))
        return
    found = read_recommendation(run) if trial == BEST else None
    if found is None and not trial.isdecimal():
        raise BadInput(f"{trial} is not the number of a trial.", f"Give one, or {BEST} for the recommendation.")
    explanation = explain_trial(run, int(trial) if found is None else found.winner.number)
    _show(explanation, None if json else partial(explanation_view, explanation, found))


@commands.command()
def runs(
    folder: Annotated[Path, typer.Argument(help="The folder of the runs.", metavar="[DIR]")] = Path("runs"),
    json: Annotated[bool, typer.Option("--json", help="Print the list as JSON on stdout.")] = False,
) -> None:
    """List the runs in a folder, the last one at the end: when it began, the model, how it ended, and its rate."""
    from optimizer.reports.evidence import list_runs
    from optimizer.reports.terminal import runs_view

    listed = list_runs(folder)
    _show(listed, None if json else partial(runs_view, listed))


@commands.command()
def compare(
    before: Annotated[
        Path, typer.Argument(help="Output directory of the earlier run.", metavar="RUN_A", callback=_named)
    ],
    now: Annotated[
        Path, typer.Argument(help="Output directory of the later run.", metavar="RUN_B", callback=_named)
    ],
    tolerance: Annotated[
        float, typer.Option(help="Changes up to this share, 0 to below 1, are never worse or better.")
    ] = 0.02,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, for a pull request.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON on stdout.")] = False,
) -> None:
    """Compare two runs under one limit: capacity, p99, cost and accuracy, with confidence intervals.

    Exit codes: 0 not worse, 97 worse by more than the uncertainties of both, 2 bad input.
    """
    from loadgen.exit_codes import CODES
    from optimizer.reports.terminal import comparison_markdown, comparison_view
    from search.answer.comparison import compare_runs
    from search.records.run_files import read_recommendation

    if not 0 <= tolerance < 1:
        raise BadInput(f"--tolerance {tolerance:g} would let any change pass.", "Give a share, such as 0.02.")
    found = read_recommendation(before), read_recommendation(now)
    comparison = compare_runs(*found, paths=(before, now), tolerance=tolerance)
    if markdown and not json:
        typer.echo(comparison_markdown(comparison), nl=False)
    else:
        _show(comparison, None if json else partial(comparison_view, comparison))
    raise typer.Exit(CODES["worse"] if comparison.answer == "worse" else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleCall:
    """The options of `optimize bundle`."""

    run: Path = option("Output directory of a run.", "RUN_DIR", default=..., argument=True)
    target: Literal["kubernetes", "kserve", "compose", "all"] = option(
        "`kubernetes`, `kserve`, `compose` or `all`.", "TARGET", default="all"
    )
    rate: float | None = option(
        "Usual traffic, in requests per second. Default: the run's.", "PER_S", positive=True
    )
    peak_rate: float | None = option(
        "Peak traffic. Default: the run's, else twice the rate.", "PER_S", positive=True
    )
    ramp_s: float | None = option("Time in which traffic grows to its peak. Default: 10m.", "DURATION", unit="s")
    replica_start_s: float | None = option(
        "Time until a new replica is ready. Default: as measured.", "DURATION", unit="s"
    )
    max_replicas: int | None = option(
        "The most replicas that there may be. Default: 100.", "N", bounds=(1, MAX_REPLICAS)
    )
    image: str | None = option("Image of Triton's native backends. Default: the release that fits.", "IMAGE")
    registry: str | None = option("Where you push the bundle's images. Default: names without one.", "REGISTRY")
    prometheus_release: str | None = option(
        "Label `release` that kube-prometheus-stack selects. Default: none.", "NAME"
    )
    loadtest_image: str | None = option("Image of the smoke test, as you pushed it.", "IMAGE")
    output: Path | None = option("Folder to write. Default: bundle in the run's directory.", "DIR")
    force: bool = option(
        "Write even if the folder holds other files: they are moved to DIR.old next to it.", default=False
    )


@command(BundleCall)
def bundle(given: BundleCall) -> None:
    """Render a run's recommendation as deployment files: Triton, autoscaling, alerts, dashboard, smoke test."""
    from deploy.plan import BundleOptions
    from deploy.scaling import DEFAULT_MAX_REPLICAS
    from optimizer.run.bundle import bundle_run, show_bundle

    options = BundleOptions(
        rate_per_s=given.rate,
        peak_rate_per_s=given.peak_rate,
        ramp_s=given.ramp_s,
        start_s=given.replica_start_s,
        max_replicas=given.max_replicas or DEFAULT_MAX_REPLICAS,
        image=given.image,
        registry=None if given.registry is None else given.registry.rstrip("/"),
        prometheus_release=given.prometheus_release,
    )
    show_bundle(
        *bundle_run(
            _named(given.run),
            target=given.target,
            options=options,
            loadtest_image=given.loadtest_image,
            output=given.output,
            force=given.force,
        )
    )
