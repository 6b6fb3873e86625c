"""Detect passwords in the URLs of storages and servers, and keep them out of all files and messages.

A URL is parsed, and only its harmless parts are shown. A text that cannot be parsed is hidden completely.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote, quote_plus, unquote

from loadgen.spec.addresses import NOT_SHOWN, shown_address

_HARMLESS = frozenset({
    "application_name", "connect_timeout", "dbname", "gssencmode", "host", "hostaddr", "mode", "port", "sslcert",
    "sslkey", "sslmode", "sslrootcert", "target_session_attrs", "timeout", "uri", "user",
})  # fmt: skip
"""Parameters of a storage URL that are no secrets; any other may be one."""

_HOST = re.compile(r"[A-Za-z0-9_.,:%-]*")
_DATABASE = re.compile(r"[A-Za-z0-9_.%/-]*")
_WORDS = re.compile(r"pass(?:word|wd)|secret|token|api.?key", re.IGNORECASE)
_MIN_SECRET = 3
"""Secrets of less than 3 characters are not replaced in a text: that would hide half of it."""


@dataclass(frozen=True, slots=True)
class _Parsed:
    """A storage URL: the part that may be shown, the secrets, and a flag that it may hold a password."""

    shown: str
    has_password: bool
    secrets: tuple[str, ...]


def shown_storage(url: str) -> str:
    """Return the storage URL for a message: driver, host, port and database; unusual forms are hidden."""
    parsed = _parsed(url)
    return NOT_SHOWN if parsed is None else parsed.shown


def is_storage_url(url: str) -> bool:
    """True if the text is a URL whose parts can be distinguished beyond doubt."""
    return _parsed(url) is not None


def has_password(url: str) -> bool:
    """True if a storage URL carries a password, before its host or among its parameters, or may carry one."""
    parsed = _parsed(url)
    return parsed is None or parsed.has_password


def without_secrets_of(text: str, url: str) -> str:
    """Return a driver's message on one line without the user, the password and the parameters of its storage."""
    parsed = _parsed(url)
    if parsed is None:
        return NOT_SHOWN
    for secret in sorted(parsed.secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def shown_arguments(arguments: list[str]) -> Iterator[str]:
    """Yield the arguments of a command for its log; possible passwords are hidden."""
    option = ""
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if option == "--storage":
            yield shown_storage(argument)
        elif name == "--storage" and equals:
            yield f"--storage={shown_storage(value)}"
        elif option == "--server-url":
            yield shown_address(argument)
        elif name.startswith("--") and equals and "://" in value:
            yield f"{name}={shown_address(value)}"
        elif "://" in argument:
            yield shown_address(argument)
        else:
            yield "***" if _WORDS.search(argument) else argument
        option = argument


def _parsed(url: str) -> _Parsed | None:
    """Return the URL as SQLAlchemy parses it; None if a part of it looks as if it contains a password."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        found = make_url(url)
    except (ArgumentError, ValueError):
        return None
    host, database = found.host or "", found.database or ""
    local = found.drivername.partition("+")[0] == "sqlite"
    if not _HOST.fullmatch(host) or not (local or _DATABASE.fullmatch(database)):
        return None
    query = [(name, one) for name, given in found.normalized_query.items() for one in given]
    hidden = [value for name, value in query if name.lower() not in _HARMLESS]
    password = None if found.password is None else str(found.password)
    # A user without a password may be a token.
    plain = not local or (database.isprintable() and not set(database) & {"@", "="})
    secrets = [
        *([found.username or ""] if password is None else [password]),
        *hidden,
        *([] if plain else [database]),
    ]
    spelled = {form for one in secrets for form in (one, quote(one, safe=""), quote_plus(one), unquote(one))}
    user = "***@" if found.username or password else ""
    port = f":{found.port}" if found.port else ""
    shown = f"{found.drivername}://{user}{host}{port}/{database if plain else '***'}{'?***' if query else ''}"
    return _Parsed(
        shown,
        has_password=password is not None or bool(hidden),
        secrets=tuple(one for one in spelled if len(one) >= _MIN_SECRET),
    )
