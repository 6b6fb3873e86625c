"""Put claims between the markers of Markdown pages.

`<!-- claim:NAME --> ... <!-- /claim -->` is the sentence of a claim, `<!-- claim:NAME.VALUE -->` one of its
figures, `NAME.n` and `NAME.misses` its cells in the table of all claims.
`<!-- table:NAME --> ... <!-- /table -->` is its table, `<!-- table:claims -->` the table of all claims, and
`<!-- table:machines -->` that of their machines.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping

from lib.claims.declared import Claim, table_of_all, table_of_machines
from lib.claims.rows import ClaimFailed

WIDTH = 118
OF_ALL = {"claims": table_of_all, "machines": table_of_machines}
MARKED = re.compile(r"<!-- (claim|table):([\w.-]+) -->(.*?)<!-- /\1 -->", re.DOTALL)
MARKER = re.compile(r"<!-- /?(?:claim|table)\b[^>]*-->")


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
    values = {**claim.values, "n": claim.n, "misses": claim.line[-1]}
    if value and value not in values:
        raise ClaimFailed(f"claim {name} has no value {value}\nIt has {', '.join(values)}.")
    return values[value] if value else claim.sentence


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
