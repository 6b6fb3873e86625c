"""Request headers from the command line and the environment; no message shows a value: it may be a secret."""

from __future__ import annotations

import base64
import json
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import quote

from loadgen.errors import LoadError
from loadgen.user_errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_OURS = ("connection", "content-length", "inference-header-content-length", "transfer-encoding")
_LEAST_SECRET = 4


def headers_from_options(
    headers: Iterable[str], from_environment: Iterable[str], environment: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    """`Name: value` options, then `NAME=VARIABLE` options whose value stands in the environment."""
    found: list[tuple[str, str]] = []
    for number, text in enumerate(headers, start=1):
        name, colon, value = text.partition(":")
        if not colon or not name.strip():
            raise BadInput(f"--header number {number} is not a header.", "Write --header 'Name: value'")
        found.append((name.strip(), value.strip()))
    for text in from_environment:
        name, equals, variable = text.partition("=")
        if not equals or not name.strip() or not variable.strip():
            raise BadInput(
                f"--header-env {name} does not say which variable to read.",
                "Write --header-env NAME=VARIABLE, such as Authorization=STAGING_TOKEN",
            )
        if not environment.get(variable.strip()):
            raise BadInput(
                f"--header-env {name.strip()}: the variable {variable.strip()} is not set, or empty.",
                "Set and export it before the command.",
            )
        found.append((name.strip(), environment[variable.strip()]))
    for name, _ in found:
        if name.lower() in _OURS:
            raise BadInput(f"The header {name} is set by loadtest itself.", "Leave it out.")
    return tuple(found)


@contextmanager
def errors_without_secrets(headers: Iterable[tuple[str, str]]) -> Iterator[None]:
    """Errors of the load, which may quote the server, with every header value struck out."""
    try:
        yield
    except LoadError as error:
        raise type(error)(without_secrets(str(error), headers)) from None


def without_secrets(text: str, headers: Iterable[tuple[str, str]]) -> str:
    """The text with every header value, and every word of one, struck out: a server may echo what it was sent.

    Also as it stands in JSON and in a URL, and what Basic credentials stand for.
    """
    words = {part for _, value in headers for part in (value, *value.split())}
    words |= {part for word in words for part in _credentials(word)}
    secrets = {form for word in words for form in (word, quote(word, safe=""), json.dumps(word)[1:-1])}
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _LEAST_SECRET:
            text = text.replace(secret, "***")
    return text


def _credentials(word: str) -> tuple[str, ...]:
    """`user:password` and the password, if the word is their Base64."""
    try:
        pair = base64.b64decode(word, validate=True).decode()
    except ValueError:
        return ()
    _, colon, password = pair.partition(":")
    return (pair, password) if colon else ()
