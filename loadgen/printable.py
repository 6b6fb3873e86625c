"""Make foreign text safe to show: text from a server, a model or a file must not control a terminal."""

from __future__ import annotations

import json

MAX_CHARACTERS = 2000


def printable(text: str, *, most: int = MAX_CHARACTERS, lines: bool = False) -> str:
    r"""Return the text with an escape such as `\x1b` for every character that is invisible or moves others.

    These are all that Unicode does not call printable: control characters, escape sequences, changes of direction,
    zero-width characters and lone surrogates. Breaks and unusual spaces become a space; with `lines`, line breaks
    stay. A text of more than `most` characters is cut, and its length is added; the result is never longer.
    The result is for display only: a name that is sent to a server must not be changed.
    """
    if text.isprintable() and len(text) <= most:
        return text
    shown = "".join(_shown(char, lines=lines) for char in text[: most + 1])
    if len(shown) <= most:
        return shown
    ending = f"... ({len(text):,} characters)"
    return shown[: max(0, most - len(ending))] + ending[:most]


def printable_json(document: str) -> str:
    r"""Return an equal JSON document with an escape such as `\u001b` for every character that is not printable.

    JSON allows characters such as U+009B and U+202E in strings, and a terminal obeys them.
    """
    if document.isascii() and "\x7f" not in document:
        return document
    return "".join(char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in document)


def _shown(char: str, *, lines: bool) -> str:
    if char.isprintable() or (lines and char == "\n"):
        return char
    return " " if char.isspace() else char.encode("unicode_escape").decode()
