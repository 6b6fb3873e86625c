"""Recognise responses that something in front of the server made: a cache, a proxy, a limit of a gateway."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from loadgen.status import outcome_name

CACHE, PROXY, LIMIT = "a cache", "a proxy", "a limit in front of the server"

LOOKED = "looked at"
"""This key counts the good HTTP responses whose headers were read."""

LOOK_AT_EACH = 13
"""One row of 13 is looked at: hardly any number of samples that are sent in turn is a multiple of it."""

_CACHE_STATUS = (b"x-cache", b"x-cache-status", b"cf-cache-status", b"cache-status")
_LIMITS = (b"x-envoy-overloaded", b"x-envoy-ratelimited")
_NOT_TRITONS = ("http 429", "grpc RESOURCE_EXHAUSTED")  # Triton has neither


def note_success(found: Counter[str], fields: Mapping[bytes, bytes]) -> None:
    """Count a response by what its headers tell of; their names are lowercase."""
    found[LOOKED] += 1
    told = next((name for name in _CACHE_STATUS if name in fields), None)
    if told is None and fields.get(b"age", b"0").strip() != b"0":
        found[f"{CACHE} (age)"] += 1
    elif told is not None and b"hit" in fields[told].lower():
        found[f"{CACHE} ({told.decode()})"] += 1
    elif b"via" in fields:
        found[f"{PROXY} (via)"] += 1


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
            verb = "passed on" if what.startswith(PROXY) else "answered, in place of the server,"
            sentences.append(f"{what} {verb} {count / looked:.0%} of the {looked:,} responses that were looked at")
    return tuple(sentences)
