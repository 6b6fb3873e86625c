"""Read the declared claims, and render their sentences and tables."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from lib.claims.figures import figure_text
from lib.claims.rows import ClaimFailed, Row, groups, joined, rows_of, select

KEYS = {
    "says",
    "machine",
    "date",
    "raw",
    "rows",
    "reader",
    "join",
    "where",
    "n",
    "misses",
    "missed",
    "values",
    "table",
}
NEEDED = {"says", "machine", "date", "raw", "n", "misses"}


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim: a sentence whose figures follow from raw results.

    `machine`: its name; `machine_words` describe it. `misses`: how many of `n` speak against the claim. `missed`:
    a sentence about them, empty if there is nothing to say. `raw`: files, relative to docs/benchmarks.
    """

    name: str
    says: str
    machine: str
    machine_words: str
    date: date
    raw: tuple[str, ...]
    n: str
    misses: str
    missed: str
    values: Mapping[str, str]
    table: str | None

    @property
    def sentence(self) -> str:
        """The sentence with its figures."""
        return _filled(self.says, self)

    @property
    def line(self) -> tuple[str, ...]:
        """The cells of the table of all claims."""
        misses = f"{self.misses}: {_filled(self.missed, self)}" if self.missed else self.misses
        return self.sentence, self.machine, self.date.isoformat(), self.n, misses


def _filled(template: str, claim: Claim) -> str:
    try:
        return template.format(n=claim.n, misses=claim.misses, **claim.values)
    except KeyError as missing:
        raise ClaimFailed(
            f"claim {claim.name}: no value {missing} for its sentence\nDeclare values.{missing.args[0]}."
        ) from None


def claims_of(folder: Path) -> dict[str, Claim]:
    """Return the claims of `folder/claims/*.toml` by name, in the order of the files.

    Raises ClaimFailed if a declaration is wrong or raw results are missing.
    """
    files = sorted((folder / "claims").glob("*.toml"))
    declared = [tomllib.loads(path.read_text()) for path in files]
    machines = {name: words for file in declared for name, words in file.get("machine", {}).items()}
    found: dict[str, Claim] = {}
    for file in declared:
        for name, claim in file.get("claim", {}).items():
            if name in found:
                raise ClaimFailed(f"claim {name} is declared twice\nRename one of them.")
            try:
                found[name] = _claim(name, claim, machines, folder)
            except ClaimFailed as problem:
                message = str(problem)
                raise ClaimFailed(
                    message if message.startswith("claim ") else f"claim {name}: {message}"
                ) from None
    return found


def _claim(name: str, declared: Mapping[str, Any], machines: Mapping[str, str], folder: Path) -> Claim:
    missing, unknown = NEEDED - declared.keys(), declared.keys() - KEYS
    if missing or unknown:
        raise ClaimFailed(
            f"lacks {sorted(missing)}, and has the unknown keys {sorted(unknown)}\nCONTRIBUTING.md has an example."
        )
    if declared["machine"] not in machines:
        raise ClaimFailed(f"machine {declared['machine']!r} is not declared\nAdd it to machines.toml.")
    every = [row for file in declared["raw"] for row in _read(folder / file, declared)]
    rows = select(joined(every, declared["join"]) if "join" in declared else every, declared.get("where", {}))
    claim = Claim(
        name=name,
        says=declared["says"],
        machine=declared["machine"],
        machine_words=machines[declared["machine"]],
        date=declared["date"],
        raw=tuple(declared["raw"]),
        n=figure_text(declared["n"], rows),
        misses=figure_text(declared["misses"], rows),
        missed=declared.get("missed", ""),
        values={key: figure_text(value, rows) for key, value in declared.get("values", {}).items()},
        table=_table(declared["table"], rows) if "table" in declared else None,
    )
    _filled(claim.says, claim)
    return claim


def _read(path: Path, declared: Mapping[str, Any]) -> tuple[Row, ...]:
    if declared.get("reader") == "exhaustive":
        from lib.claims.exhaustive_rows import exhaustive_rows  # imports the search

        return exhaustive_rows(path)
    return rows_of(path, declared.get("rows"))


def _table(declared: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """Return a Markdown table: one line per group of rows, or per row if `by` is not declared."""
    columns = declared["columns"]
    chosen = select(rows, declared.get("where", {}))
    parts = groups(chosen, declared["by"]) if "by" in declared else [[row] for row in chosen]
    lines = [[figure_text(column, part) for column in columns] for part in parts]
    return markdown_table([column["head"] for column in columns], lines)


def markdown_table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown; vertical bars in cells are escaped."""
    cells = [heads, ["---"] * len(heads), *lines]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in cells)


def table_of_all(claims: Mapping[str, Claim]) -> str:
    """Return the table of all claims: claim, machine, date, n and misses."""
    return markdown_table(("claim", "machine", "date", "n", "misses"), [claim.line for claim in claims.values()])


def table_of_machines(claims: Mapping[str, Claim]) -> str:
    """Return the table of the machines that the claims name."""
    described = {claim.machine: claim.machine_words for claim in claims.values()}
    return markdown_table(("machine", ""), sorted(described.items()))
