"""The report as one self-contained page: its styles, its data and the plotting library are inside."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from loadgen.printable import printable
from optimizer.report import promise_text
from optimizer.reports import tables, words
from optimizer.reports.commands import commands
from optimizer.reports.plots import plots

if TYPE_CHECKING:
    from jinja2 import Environment

    from optimizer.reports.evidence import Evidence

TEMPLATES = files("optimizer.reports") / "templates"


def html_page(evidence: Evidence) -> str:
    """The whole page. Whatever comes from the model or the run is escaped by the template engine."""
    template = _environment().from_string(_template("report.html"))
    return template.render(
        evidence=evidence,
        found=evidence.found,
        headline=words.headline(evidence),
        saving=words.saving(evidence),
        caveat=words.caveat(evidence),
        disturbed=words.disturbed(evidence),
        replicas_needed=words.replicas_needed(evidence),
        promise=promise_text(evidence.slo),
        plots=plots(evidence),
        comparison=tables.comparison(evidence),
        frontier=tables.frontier(evidence),
        stages=tables.stages(evidence),
        time_summary=words.time_summary(evidence),
        layers=tables.layers(evidence),
        layers_note=words.layers_note(evidence),
        spent=list(tables.spent(evidence)),
        trials=tables.trials(evidence),
        accuracy=tables.accuracy(evidence),
        replicas=tables.replicas(evidence),
        price=tables.price(evidence),
        machine=tables.machine(evidence),
        commands=commands(evidence),
        inlined=_template,
    )


def _environment() -> Environment:
    from jinja2 import Environment, StrictUndefined

    def seen(value: object) -> object:
        """Our own files are Markup, and stay as they are."""
        return printable(value, lines=True) if isinstance(value, str) and not hasattr(value, "__html__") else value

    return Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=seen
    )


@cache
def _template(name: str) -> str:
    return TEMPLATES.joinpath(name).read_text(encoding="utf-8")
