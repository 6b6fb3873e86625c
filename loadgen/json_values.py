"""Check values from a server's JSON documents."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_MAX_ENTRIES = 10_000
_LONGEST_SHOWN = 60
_DIGITS = re.compile(r"-?[0-9]{1,19}", re.ASCII)


class Unusable(ValueError):
    """A value in a server's document violates the protocol; the message names it."""


def whole_number(value: object, *, least: int | None = None) -> int:
    """Return an integer, which gRPC's JSON writes as digits in a string. Raises Unusable for anything else."""
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 1 << 63:
        raise Unusable(f"{short(value)} is not a whole number of 64 bits")
    if least is not None and value < least:
        raise Unusable(f"{value} is less than {least}")
    return value


def json_object(value: object, what: str) -> Mapping[str, Any]:
    """Return a JSON object. Raises Unusable, which names it as `what`, for anything else."""
    if not isinstance(value, dict):
        raise Unusable(f"{what} is not a JSON object: {short(value)}")
    return value


def json_list(document: Mapping[str, Any], key: str) -> list[Any]:
    """Return the list under a key, empty without one or for null. Raises Unusable, also for over 10,000."""
    entries = [] if document.get(key) is None else document[key]
    if not isinstance(entries, list) or len(entries) > _MAX_ENTRIES:
        raise Unusable(f"{key} is not a list of at most {_MAX_ENTRIES:,} entries: {short(entries)}")
    return entries


def short(value: object) -> str:
    """Return a value for a message. Of a long or nested one only the type: half of it may be half of a secret."""
    if not isinstance(value, str | int | float | None):
        return f"a {type(value).__name__}"
    text = ascii(value)
    return text if len(text) <= _LONGEST_SHOWN else f"a {type(value).__name__} of {len(text):,} characters"
