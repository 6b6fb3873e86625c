"""The report as Markdown for a pull request: the answer, the comparison, and the rest folded away."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from loadgen.printable import printable
from optimizer.reports import tables, words
from optimizer.reports.commands import commands

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optimizer.reports.evidence import Evidence
    from optimizer.reports.tables import Table


def markdown(evidence: Evidence) -> str:
    """GitHub's kind of Markdown."""
    text = "\n".join(_lines(evidence)) + "\n"
    return printable(text, most=len(text), lines=True)


def _lines(evidence: Evidence) -> Iterator[str]:
    yield f"## {literal(evidence.model_name)}: {literal(words.headline(evidence))}"
    yield f"\n**{literal(words.saving(evidence))}**"
    for more in (words.replicas_needed(evidence), words.caveat(evidence), words.disturbed(evidence)):
        if more:
            yield f"\n{literal(more)}"
    if evidence.found is not None:
        yield f"\n{literal(evidence.found.reason)}"
    yield from _table(tables.comparison(evidence))
    yield from _folded("Frontier of rate and latency", tables.frontier(evidence))
    yield from _folded("Accuracy per precision", tables.accuracy(evidence))
    yield from _folded("Where the time goes", tables.stages(evidence), words.time_summary(evidence))
    yield from _folded("Slowest layers", tables.layers(evidence), words.layers_note(evidence))
    yield from _folded("Cost per number of replicas", tables.replicas(evidence))
    yield from _folded("Price", tables.price(evidence))
    if evidence.trials:
        spent = ", ".join(f"{name} {value}" for name, value in tables.spent(evidence))
        yield from _folded(f"{len(evidence.trials)} trials ({spent})", tables.trials(evidence))
    yield from _folded("Machine and versions", tables.machine(evidence))
    yield "\n```sh"
    for what, command in commands(evidence):
        yield f"{command.replace('`', '')}  # {what.lower()}"
    yield "```"


def _folded(title: str, table: Table | None, text: str = "") -> Iterator[str]:
    if table is not None:
        yield f"\n<details><summary>{literal(title)}</summary>"
        if text:
            yield f"\n{literal(text)}"
        yield from _table(table)
        yield "\n</details>"


def _table(table: Table | None) -> Iterator[str]:
    if table is None or not table.rows:
        return
    width = len(table.rows[0])
    headings = table.headings or ("",) * width
    aligned = ["---:" if cell.style == "number" else "---" for cell in table.rows[0]]
    yield ""
    yield f"| {' | '.join(literal(heading) for heading in headings)} |"
    yield f"| {' | '.join(aligned)} |"
    for row in table.rows:
        yield f"| {' | '.join(literal(cell.text) for cell in row)} |"


def literal(text: str) -> str:
    """Text that stays text: nothing in it is taken for markup, and it keeps to its line and cell."""
    return re.sub(r"([\\`*_\[\]<>|#&])", r"\\\1", " ".join(text.split()))
