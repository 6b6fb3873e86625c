"""Recognise passwords in the URLs of storages, which come from the environment, and show URLs without them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from loadgen.spec.addresses import NOT_SHOWN, shown_address

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

_HARMLESS = frozenset({
    "application_name", "connect_timeout", "dbname", "gssencmode", "host", "hostaddr", "mode", "port", "sslcert",
    "sslkey", "sslmode", "sslrootcert", "target_session_attrs", "timeout", "uri", "user",
})  # fmt: skip
"""Parameters of a storage URL that are no secrets; any other may be one."""

_HOST = re.compile(r"[A-Za-z0-9_.,:%-]*")
_DATABASE = re.compile(r"[A-Za-z0-9_.%/-]*")
_WORDS = re.compile(r"pass(?:word|wd)|secret|token|api.?key", re.IGNORECASE)


def _parsed(url: str) -> URL | None:
    """Return the URL as SQLAlchemy parses it; None if a part of it looks as if it contains a password."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        found = make_url(url)
    except (ArgumentError, ValueError):
        return None
    is_file = found.drivername.partition("+")[0] == "sqlite"
    clear = _HOST.fullmatch(found.host or "") and (is_file or _DATABASE.fullmatch(found.database or ""))
    return found if clear else None


def shown_storage(url: str) -> str:
    """Return the storage URL for a message: driver, host, port and database; unusual forms are hidden."""
    found = _parsed(url)
    if found is None:
        return NOT_SHOWN
    port = f":{found.port}" if found.port else ""
    return f"{found.drivername}://{found.host or ''}{port}/{found.database or ''}"


def is_storage_url(url: str) -> bool:
    """True if the text is a URL whose parts can be distinguished beyond doubt."""
    return _parsed(url) is not None


def has_password(url: str) -> bool:
    """True if a storage URL carries a password, before its host or among its parameters, or may carry one."""
    found = _parsed(url)
    return found is None or found.password is not None or not {name.lower() for name in found.query} <= _HARMLESS


def shown_arguments(arguments: list[str]) -> Iterator[str]:
    """Yield the arguments of a command for its log; possible passwords are hidden."""
    for option, argument in pairwise(["", *arguments]):
        name, _, value = argument.partition("=")
        if name.startswith("--") and "://" in value:
            yield f"{name}={shown_address(value)}"
        elif "://" in argument or option == "--server-url":
            yield shown_address(argument)
        else:
            yield "***" if _WORDS.search(argument) else argument
