"""The files under `docs/` that are generated from the code. As a script: print the one that is named."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
RECORDED_RUN = DOCS / "benchmarks" / "2026-11-23-demo" / "recommendation.json"


def recommendation_schema() -> str:
    """Return the JSON schema of `recommendation.json`."""
    from pydantic import TypeAdapter

    from search.records.recommendation import AnyRecommendation

    return _schema(TypeAdapter(AnyRecommendation).json_schema(mode="serialization"))


def trial_schema() -> str:
    """Return the JSON schema of a line of `trials.jsonl`."""
    from search.records.trial import TrialRecord

    return _schema(TrialRecord.model_json_schema(mode="serialization"))


def cli_reference() -> str:
    """Return the `--help` of both commands and their subcommands, as Markdown."""
    import typer
    from typer.testing import CliRunner

    import loadgen.cli
    import optimizer.cli

    os.environ["TERMINAL_WIDTH"] = "100"
    sections = ["# Command line\n\nEvery option of both commands. A test keeps this page up to date.\n"]
    apps: tuple[tuple[str, typer.Typer, list[str]], ...] = (
        ("optimize", optimizer.cli.app, []),
        ("optimize doctor", optimizer.cli.app, ["doctor"]),
        ("optimize serve", optimizer.cli.app, ["serve"]),
        ("optimize worker", optimizer.cli.app, ["worker"]),
        ("optimize report", optimizer.cli.app, ["report"]),
        ("optimize explain", optimizer.cli.app, ["explain"]),
        ("optimize runs", optimizer.cli.app, ["runs"]),
        ("optimize compare", optimizer.cli.app, ["compare"]),
        ("optimize fleet", optimizer.cli.app, ["fleet"]),
        ("optimize bundle", optimizer.cli.app, ["bundle"]),
        ("loadtest", loadgen.cli.app, []),
    )
    for name, app, arguments in apps:
        everything = "--help" if arguments else "--help-all"
        result = CliRunner().invoke(app, [*arguments, everything], prog_name=name.split()[0], color=False)
        lines = "\n".join(line.rstrip() for line in result.output.strip().splitlines())
        sections.append(f"## {name}\n\n```\n{lines}\n```\n")
    return "\n".join(sections)


def demo_picture() -> str:
    """Return the terminal view of a recorded run's recommendation, as an SVG."""
    from rich.terminal_theme import MONOKAI

    from loadgen.console import SafeConsole
    from optimizer.reports.terminal import answer_view
    from search.records.recommendation import RecommendationRecord

    found = RecommendationRecord.model_validate_json(RECORDED_RUN.read_text())
    with Path(os.devnull).open("w") as nowhere:
        console = SafeConsole(record=True, width=96, force_terminal=True, color_system="truecolor", file=nowhere)
        console.print(answer_view(found, Path("runs/ranking_mlp")))
    return console.export_svg(title="optimize --model ranking_mlp.onnx --p99 50ms", theme=MONOKAI)


FILES: dict[str, Callable[[], str]] = {
    "recommendation.schema.json": recommendation_schema,
    "trials.schema.json": trial_schema,
    "cli.md": cli_reference,
    "images/demo.svg": demo_picture,
}


def _schema(schema: dict[str, object]) -> str:
    return json.dumps(schema, indent=2) + "\n"


if __name__ == "__main__":
    sys.stdout.write(FILES[sys.argv[1]]())
