"""The report kit: one table for the page, Markdown and the terminal, and one page that needs no network."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from rich import box
from rich.table import Table as TerminalTable
from rich.text import Text

from loadgen.printable import printable, printable_json

Data = dict[str, Any]
"""Plain values that a plot draws; the browser only places the marks."""

Plot = tuple[str, Data]
"""The name of a function in `page.js`, with more after a colon if a page has several of it; and its data."""

NUMBER = "number"
TONES = {
    "main": "bold",
    "met": "green",
    "better": "green",
    "complete": "green",
    "inconclusive": "yellow",
    "interrupted": "yellow",
    "untrustworthy": "magenta",
    "infeasible": "yellow",
    "violated": "red",
    "worse": "bold red",
    "failed": "red",
}
"""Colours of the terminal for outcomes and the styles of cells; the page has them in `page.css`."""

SHOWN_CELLS = 24
"""A table with more cells is folded."""

LONG_WORD = 20
"""Words from 20 characters on may break on the page at these joints: after a slash, a point, a colon or an
underscore, and between parts of a name that begin with a capital."""
_BEFORE_PERCENT = re.compile(r"(?<=\d) (?=%)")
_JOINTS = re.compile(r"(?<=[/._:])(?=\w)|(?<=[a-z])(?=[A-Z])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Text to show. `order` is the value to sort by if that is not the text; `style` is a list of CSS classes.

    `more` is shown on the page alone, folded away.
    """

    text: str
    order: float | None = None
    style: str = ""
    more: str = ""

    @property
    def is_number(self) -> bool:
        """True if the text is a figure, which is aligned to the right."""
        return NUMBER in self.style.split()


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of cells under headings. The first column names the row, unless the table is sortable."""

    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    sortable: bool = False

    @property
    def columns(self) -> list[tuple[str, bool]]:
        """The heading of each column, and whether its cells are numbers."""
        first = self.rows[0] if self.rows else (Cell(text=""),) * len(self.headings)
        return [
            (heading, cell.is_number)
            for heading, cell in zip(self.headings or ("",) * len(first), first, strict=True)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of a report: a plot, a table or commands; a part that has none of them is left out.

    `caption` explains the plot, and `note` the table. Facts are pairs of a name and its value; commands
    are pairs of a purpose and a command line.
    """

    title: str
    plot: Plot | None = None
    caption: str = ""
    note: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    table: Table | None = None
    commands: tuple[tuple[str, str], ...] = ()

    @property
    def folded(self) -> bool:
        """True if the page shows only title and facts until it is opened, unless it is the first: it is long."""
        return self.table is not None and sum(map(len, self.table.rows)) > SHOWN_CELLS


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A figure of one configuration. `share`: the length of its bar, 0 to 1; None: it has none.

    `style` is a CSS class: winner, baseline or start, with `estimated` if it was not measured.
    """

    name: str
    text: str
    share: float | None = None
    style: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What to set, above all else: lines to copy, facts about them, and figures compared by bars.

    `compared` are pairs of a figure's name and its bars.
    """

    title: str
    code: str
    note: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    compared: tuple[tuple[str, tuple[Bar, ...]], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A report: its subject, the answer as a headline with its tone, sentences about the answer, and the parts.

    With a `card`, the page shows it first, the caveats after the plots, and all tables folded.
    """

    title: str
    subject: str
    headline: str
    tone: str = ""
    card: Card | None = None
    lead: tuple[str, ...]
    caveats: tuple[str, ...]
    remarks: tuple[str, ...] = ()
    sections: Sequence[Section]
    footer: str

    @property
    def plots(self) -> dict[str, Data]:
        """The data of every plot by the plot's name."""
        return dict(part.plot for part in self.sections if part.plot is not None)


def nines(share: float) -> float:
    """Return the place of a quantile on an axis where every further nine takes as much room as the one before."""
    return -math.log10(1 - share)


def number(value: float | None, show: Callable[[float | None], str], *, style: str = "") -> Cell:
    """Return a figure that sorts as one; an unknown value comes last."""
    return Cell(text=show(value), order=value, style=f"{NUMBER} {style}".strip())


def count(value: float | None) -> str:
    """Return a whole number as text, with thousands separated."""
    return "-" if value is None else f"{value:,.0f}"


def table_of_texts(headings: tuple[str, ...], rows: Sequence[tuple[str, Sequence[str | Cell]]]) -> Table:
    """Return a table whose rows have a name; a text is a plain cell."""
    cells = [
        (Cell(text=name), *(cell if isinstance(cell, Cell) else Cell(text=cell) for cell in texts))
        for name, texts in rows
    ]
    return Table(headings=headings, rows=tuple(cells))


def terminal_table(table: Table) -> TerminalTable:
    """Return the table for the terminal; without headings, a list of names and values."""
    if table.headings:
        drawn = TerminalTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    else:
        drawn = TerminalTable.grid(padding=(0, 2))
    for position, (heading, is_number) in enumerate(table.columns):
        names = not table.headings and position == 0
        drawn.add_column(
            Text(heading), justify="right" if is_number else "left", overflow="fold",
            style="bold" if names else "", no_wrap=names,
        )  # fmt: skip
    for row in table.rows:
        tones = [[TONES[word] for word in cell.style.split() if word in TONES] for cell in row]
        drawn.add_row(*(Text(cell.text, style="".join(tone[:1])) for cell, tone in zip(row, tones, strict=True)))
    return drawn


def markdown_table(table: Table | None) -> Iterator[str]:
    """Yield the lines of the table in GitHub's Markdown, an empty one first; none for a table without rows."""
    if table is None or not table.rows:
        return
    yield ""
    yield f"| {' | '.join(literal(heading) for heading, _ in table.columns)} |"
    yield f"| {' | '.join('---:' if is_number else '---' for _, is_number in table.columns)} |"
    for row in table.rows:
        yield f"| {' | '.join(literal(cell.text) for cell in row)} |"


def literal(text: str) -> str:
    """Return text without effect in Markdown: no markup, on one line, in one cell."""
    return re.sub(r"([\\`*_\[\]<>|#&])", r"\\\1", " ".join(text.split()))


def markdown(report: Report) -> str:
    """Return the report in GitHub's Markdown: the first table at once, the others folded away, and no plots."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(  # noqa: S701 - nothing of it is HTML that a browser gets unescaped
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters["literal"] = literal
    text = environment.from_string(_file("report.md")).render(report=report, markdown_table=markdown_table)
    return printable(text, most=len(text), lines=True)


def page(report: Report) -> str:
    """Return the report as one HTML file: answer, card, plots, then tables. The template escapes all text."""
    return _html("page.html", report=report, file=_file)


def card(headline: str, lines: Sequence[str], table: Table | None) -> str:
    """Return an answer as a piece of HTML for a notebook, in its colours. The template escapes all text."""
    return _html("card.html", headline=headline, lines=[line for line in lines if line], table=table)


def _html(name: str, **values: object) -> str:
    from jinja2 import Environment, StrictUndefined

    def safe(value: object) -> object:
        """Our own files are Markup, and stay as they are."""
        return printable(value, lines=True) if isinstance(value, str) and not hasattr(value, "__html__") else value

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=safe
    )
    environment.filters["whole"] = _whole
    return environment.from_string(_file(name)).render(values)


def _whole(text: str) -> str:
    """Return text as markup that breaks between words.

    Options and percentages stay whole, long names break at their joints.
    """
    from markupsafe import Markup, escape

    def marked(word: str) -> str:
        if len(word) < LONG_WORD and not word.startswith("--"):
            return escape(word)
        return Markup('<span class="word">{}</span>').format(Markup("<wbr>").join(_JOINTS.split(word)))

    text = _BEFORE_PERCENT.sub("\N{NO-BREAK SPACE}", printable(text, lines=True))
    return Markup("").join(map(marked, re.split(r"(\s+)", text)))


@cache
def _file(name: str) -> str:
    """One of our own files; a script's invisible characters become escapes of the same meaning."""
    return printable_json(files("loadgen.reports").joinpath("templates", name).read_text(encoding="utf-8"))
