"""Turn the raw lines of the comparison with Model Analyzer into its table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from lib.raw_lines import Line

HEADS = (
    "tuned by", "wall time, s", "ended", "batch x instances", "promised, /s", "audits met, violated, undecided",
    "capacity, /s", "others took, cores",
)  # fmt: skip


def table(lines: Sequence[Line]) -> str:
    """Return the table in Markdown, a line per recommendation."""
    rows = [row(line, lines) for line in lines if line["phase"] == "tuned"]
    return "\n".join([f"| {' | '.join(HEADS)} |", "|---" * len(HEADS) + "|", *rows]) + "\n"


def row(tuned: Line, lines: Sequence[Line]) -> str:
    """Return the line of one recommendation; what is not known is a dash."""
    mine = [line for line in lines if line["by"] == tuned["by"]]
    audits = Counter(line["answer"] for line in mine if line["phase"] == "audit")
    capacity = next((line for line in mine if line["phase"] == "capacity"), None)
    knobs, promised = tuned["knobs"], tuned["promised_per_s"]
    others = sorted(line["others_cores"] for line in mine)
    cells = [
        tuned["by"],
        f"{tuned['wall_s']:.0f}",
        tuned["ended"],
        "-" if knobs is None else f"{knobs['max_batch_size']} x {knobs['instance_count']}",
        "-" if promised is None else f"{promised:,.0f}",
        f"{audits['met']}, {audits['violated']}, {audits['inconclusive']}" if audits else "-",
        "-" if capacity is None else capacity_text(capacity),
        f"{others[0]:.1f} to {others[-1]:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def capacity_text(line: Line) -> str:
    """Return the rates that met and violated the limit, or why they are not known."""
    return str(line.get("failure") or f"{line['low_per_s']:,.0f} to {line['high_per_s']:,.0f}")
