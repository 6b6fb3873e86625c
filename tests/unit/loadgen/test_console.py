"""Unit: whatever is printed, only Rich's own escapes reach the terminal."""

import io
import re

import pytest
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from loadgen.console import SafeConsole

EVIL = "\x1b[2J\x1b]0;title\x07\x9b1m\x7f\u202egpj\u2066\u200b"
OF_RICH = re.compile(r"\x1b\[[0-9;]*m")


def _table() -> Table:
    table = Table("model")
    table.add_row(EVIL)
    return table


@pytest.mark.parametrize(
    "shown",
    [EVIL, Text(EVIL), Text.from_markup(f"[bold]{escape(EVIL)}[/bold]"), Panel(EVIL, title=EVIL), _table()],
    ids=["string", "text", "markup", "panel", "table"],
)
@pytest.mark.parametrize("soft_wrap", [True, False])
def test_only_the_colours_of_rich_are_left(shown: str | Text | Panel | Table, soft_wrap: bool | None) -> None:
    written = io.StringIO()

    SafeConsole(file=written, force_terminal=True, width=100).print(shown, style="red", soft_wrap=soft_wrap)

    assert OF_RICH.search(written.getvalue())
    left = OF_RICH.sub("", written.getvalue()).replace("\n", "")
    assert left.isprintable()
    assert r"\x1b[2J" in left


def test_a_box_keeps_its_width_around_escapes() -> None:
    written = io.StringIO()

    SafeConsole(file=written, width=40).print(Panel("\x1b" * 30))

    assert {len(line) for line in written.getvalue().splitlines()} == {40}
