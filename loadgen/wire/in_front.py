"""Recognise responses that a cache, a proxy, a limit of a gateway or a model of another name made."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from loadgen.json_values import short
from loadgen.status import outcome_name

CACHE, PROXY, LIMIT = "a cache in front of the server", "a proxy", "a limit in front of the server"

LOOKED = "looked at"
"""This key counts the good HTTP responses whose headers were read."""

_SAYS_HIT, _SAYS_YES = re.compile(rb"(?i)(?<![a-z])hit\b"), re.compile(rb"(?i)true|yes|[0, ]*[1-9]")
_MOST_KINDS = 10  # a server may have a new name for each response
_LIMITS = (b"x-envoy-overloaded", b"x-envoy-ratelimited")
_NOT_TRITONS = ("http 429", "grpc RESOURCE_EXHAUSTED")  # Triton has neither


def note_success(found: Counter[str], fields: Mapping[bytes, bytes]) -> None:
    """Count a response by what its headers tell of; their names are lowercase."""
    found[LOOKED] += 1
    aged = b"age" if fields.get(b"age", b"0").strip() != b"0" else None
    if hit := next((name for name, value in fields.items() if _is_hit(name, value)), aged):
        _count(found, f"{CACHE} ({hit.decode('latin-1')})")
    elif b"via" in fields:
        found[f"{PROXY} (via)"] += 1


def _is_hit(name: bytes, value: bytes) -> bool:
    """True for a header of a cache that says "hit", or that is called so and says yes or a number of hits."""
    return b"cache" in name and bool(_SAYS_HIT.search(value) or (b"hit" in name and _SAYS_YES.match(value)))


def note_model(found: Counter[str], asked: str, replied: str) -> None:
    """Count a good reply that names another model than the one asked for; empty: it names none."""
    if replied not in ("", asked):
        _count(found, f"the model {short(replied)}, not {asked!a},")


def _count(found: Counter[str], what: str) -> None:
    found[what if what in found or len(found) < _MOST_KINDS else "something else"] += 1


def note_failure(found: Counter[str], outcome: int, fields: Mapping[bytes, bytes]) -> None:
    """Count a failed response if the server itself did not make it."""
    told = next((name.decode() for name in _LIMITS if name in fields), None)
    if told is not None or outcome_name(outcome) in _NOT_TRITONS:
        found[f"{LIMIT} ({told or outcome_name(outcome)})"] += 1


def in_words(found: Mapping[str, int]) -> tuple[str, ...]:
    """Return a sentence for each that was counted."""
    looked = found.get(LOOKED, 0)
    sentences = []
    for what, count in found.items():
        if what.startswith(LIMIT):
            sentences.append(f"{count:,} requests failed at {what}: its own capacity was not measured")
        elif what != LOOKED:
            verb = "passed on" if what.startswith(PROXY) else "gave"
            sentences.append(f"{what} {verb} {count / looked:.0%} of the {looked:,} responses that were looked at")
    return tuple(sentences)
