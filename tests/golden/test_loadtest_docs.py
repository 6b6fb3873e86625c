"""The reference of `loadtest` and the schema of its record. UPDATE_GOLDENS=1 rewrites them, and fails."""

import json
import os
from pathlib import Path

import pytest
import typer

from loadgen.cli import app
from loadgen.records.record import LoadTestRecord

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "loadtest.md"
SCHEMA = DOCS / "loadtest-record.schema.json"
START, END = "<!-- options: written by tests/golden/test_loadtest_docs.py -->\n", "<!-- end of options -->"


def reference() -> str:
    """The options as tables, a table a panel of `--help`."""
    panels: dict[str, list[str]] = {}
    for option in typer.main.get_command(app).params:
        if option.param_type_name != "option":
            continue
        flags = ", ".join(reversed(option.opts))
        name = f"{flags} {option.metavar}" if option.metavar else flags
        panel = getattr(option, "rich_help_panel", None) or "General"
        panels.setdefault(panel, []).append(f"| `{name}` | {option.help} |")  # type: ignore[attr-defined]
    return "".join(
        f"### {panel}\n\n| option | |\n|---|---|\n" + "\n".join(rows) + "\n\n" for panel, rows in panels.items()
    )


def compare_or_rewrite(path: Path, text: str) -> None:
    if os.environ.get("UPDATE_GOLDENS"):
        path.write_text(text)
        pytest.fail(f"{path.name} has been rewritten: read the difference, then run without UPDATE_GOLDENS")
    assert path.read_text() == text


def test_every_option_is_in_the_documentation() -> None:
    page = PAGE.read_text()
    before, rest = page.split(START)
    compare_or_rewrite(PAGE, before + START + reference() + END + rest.split(END)[1])


def test_the_schema_of_the_record_is_in_the_documentation() -> None:
    compare_or_rewrite(SCHEMA, json.dumps(LoadTestRecord.model_json_schema(mode="serialization"), indent=2) + "\n")
