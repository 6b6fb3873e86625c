"""Put claims between the markers of Markdown pages, and find figures that no claim knows.

`<!-- claim:NAME --> ... <!-- /claim -->` is the sentence of a claim, `<!-- claim:NAME.VALUE -->` one of its
figures, `<!-- table:NAME --> ... <!-- /table -->` its table, `<!-- table:claims -->` the table of all claims, and
`<!-- table:machines -->` that of their machines.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path

from lib.claims.declared import Claim, table_of_all, table_of_machines
from lib.claims.rows import ClaimFailed

WIDTH = 118
OF_ALL = {"claims": table_of_all, "machines": table_of_machines}
MARKED = re.compile(r"<!-- (claim|table):([\w.-]+) -->(.*?)<!-- /\1 -->", re.DOTALL)
MARKER = re.compile(r"<!-- /?(?:claim|table)\b[^>]*-->")

_UNIT = (
    r"(?:/s|%|dB|[kKMG]i?B|ns|us|ms|s|x|times|seconds?|minutes?|hours?|requests/s|requests a second"
    r"|requests|inferences|images|searches|audits|points|percent|per cent)(?![\w/])"
)
_SMALL = r"(?:\d+|none|one|two|three|four|five|six|seven|eight|nine|ten)"
FIGURE = re.compile(
    rf"(?<![\w.,-])(?:\d[\d,]*(?:\.\d+)?\s?{_UNIT}|{_SMALL} (?:of|in) (?:\d[\d,]*|five|six|ten)\b)"
)
"""A number with a unit, or a share such as `4 of 5`."""

_NOT_PROSE = (
    re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE),
    re.compile(r"(?<=\n\n)(?: {4}.*\n)+"),  # indented code
    re.compile(r"<!-- options:.*?<!-- end of options -->", re.DOTALL),  # generated from the code
    re.compile(r"``.*?``|`[^`]*`"),
    re.compile(r"\]\([^)]*\)"),
    re.compile(r"<!--.*?-->", re.DOTALL),
)


def with_claims(page: str, claims: Mapping[str, Claim]) -> str:
    """Return a page with what stands between its markers written anew.

    Raises ClaimFailed if a marker names no claim, or has no end.
    """
    replaced = MARKED.sub(lambda match: _written(match, claims), page)
    if alone := MARKER.search(MARKED.sub("", page)):
        raise ClaimFailed(f"the marker {alone[0]} has no partner\nWrite <!-- claim:NAME --> and <!-- /claim -->.")
    return replaced


def _written(match: re.Match[str], claims: Mapping[str, Claim]) -> str:
    kind, name, old = match.groups()
    text = _table(name, claims) if kind == "table" else _sentence(name, claims)
    if kind == "table":
        text = f"\n\n{text}\n\n"
    elif old.startswith("\n"):
        text = f"\n{textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)}\n"
    return f"<!-- {kind}:{name} -->{text}<!-- /{kind} -->"


def _sentence(name: str, claims: Mapping[str, Claim]) -> str:
    name, _, value = name.partition(".")
    claim = _known(name, claims)
    if value and value not in claim.values:
        raise ClaimFailed(f"claim {name} has no value {value}\nIt has {', '.join(claim.values)}.")
    return claim.values[value] if value else claim.sentence


def _table(name: str, claims: Mapping[str, Claim]) -> str:
    if name in OF_ALL:
        return OF_ALL[name](claims)
    table = _known(name, claims).table
    if table is None:
        raise ClaimFailed(f"claim {name} has no table\nDeclare claim.{name}.table.")
    return table


def _known(name: str, claims: Mapping[str, Claim]) -> Claim:
    if name not in claims:
        raise ClaimFailed(
            f"a marker names the claim {name}, which is not declared\n`make claims` lists those that are."
        )
    return claims[name]


def figures_of(page: str) -> list[str]:
    """Return the figures of a page's prose: outside of code, links and what claims write."""
    prose = MARKED.sub(" ", page)
    for other in _NOT_PROSE:
        prose = other.sub(" ", prose)
    return [" ".join(match[0].split()) for match in FIGURE.finditer(prose)]


def unknown_figures(pages: Iterable[Path], root: Path, not_claims: Mapping[str, list[str]]) -> list[str]:
    """Return a line per figure that is neither written by a claim nor listed, and per listed one that is gone."""
    problems = []
    for path in pages:
        page = path.relative_to(root).as_posix()
        found, listed = set(figures_of(path.read_text())), set(not_claims.get(page, ()))
        problems += [f"{page}: {figure} is written by no claim" for figure in sorted(found - listed)]
        problems += [f"{page}: {figure} is listed, and not on the page" for figure in sorted(listed - found)]
    return problems
