"""The exit codes of `optimize` and `loadtest`: one table, and the choice if several apply."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, NamedTuple

Status = Literal[
    "certified",
    "met",
    "measured",
    "provisional",
    "inconclusive",
    "worse",
    "untrustworthy",
    "violated",
    "bad_input",
    "environment_failed",
    "bug",
    "interrupted",
]
"""How a command ended. certified, provisional: of `optimize`. met, measured: of `loadtest`, the latter without a
limit. provisional: met once, and not again on a restarted server, or with less confidence than was asked for."""


class ExitCode(NamedTuple):
    """One row of the table."""

    code: int
    statuses: tuple[Status, ...]
    meaning: str


TABLE = (
    ExitCode(
        0,
        ("certified", "met", "measured"),
        "a rate is certified, twice (`optimize`); every limit is met (`loadtest`)",
    ),
    ExitCode(
        96,
        ("provisional", "inconclusive"),
        "inconclusive: the time was too short (`loadtest --accept-observed`: 0 if the run met every limit), or "
        "prompts or replies had other lengths than asked for; or provisional: met once and not confirmed, which "
        "`--accept-provisional` turns into 0",
    ),
    ExitCode(97, ("worse",), "worse than the baseline, beyond the uncertainties of both"),
    ExitCode(98, ("untrustworthy",), "the client or the machine could not measure"),
    ExitCode(
        99,
        ("violated",),
        "the limit is violated. For `optimize`: even single requests to the fastest configuration are too slow",
    ),
    ExitCode(2, ("bad_input",), "bad input: an option, a file or an address cannot be used"),
    ExitCode(3, ("environment_failed",), "the environment failed: a server, a disk, memory or a storage"),
    ExitCode(1, ("bug",), "a bug in tritune"),
    ExitCode(130, ("interrupted",), "interrupted, also before the first trial or request"),
)

PRECEDENCE = (130, 1, 2, 3, 98, 99, 96, 97, 0)
"""If several statuses apply, the code that comes first here counts."""

CODES: dict[Status, int] = {status: row.code for row in TABLE for status in row.statuses}


def exit_code(facts: Collection[Status], *, accept_provisional: bool = False) -> int:
    """Return the exit code if all of `facts` apply. Raises ValueError without any."""
    codes = [0 if status == "provisional" and accept_provisional else CODES[status] for status in facts]
    return min(codes, key=PRECEDENCE.index)


def exit_codes_help() -> str:
    """Return the table as a list in Markdown, for the help of a command."""
    return "Exit codes:\n\n" + "\n".join(f"- {row.code}: {row.meaning}" for row in TABLE) + "\n"
