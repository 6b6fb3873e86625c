"""Change fields of a `config.pbtxt` in its text: everything else stays, byte for byte."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""(?P<gap>\s+|\#[^\n]*)
      | (?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<word>[\w.+\-/]+)
      | (?P<mark>[{}<>\[\]:,;])""",
    re.VERBOSE | re.ASCII,
)
_CLOSING = {"{": "}", "<": ">", "[": "]"}

_Token = tuple[str, int, int]
"""Kind of a token (`text`, `word`, or the mark itself), and the range of its characters."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field as it is written once: `name: value`, `name { ... }` or `name: [ ..., ... ]`.

    The field is `start` to `end`, and a separator behind it ends at `after`. `values` are the ranges of its
    values: of a list those of its elements, and else one. `listed` is the range of the list, None without one.
    """

    name: str
    start: int
    end: int
    after: int
    values: tuple[tuple[int, int], ...]
    listed: tuple[int, int] | None


def fields(text: str) -> list[Field]:
    """Return the outermost fields in order. Raises ValueError, with the line, for a text that is no message."""
    return list(_fields(text, list(_tokens(text))))


def bodies(text: str, name: str) -> list[str]:
    """Return what is between the brackets of each message in the fields of this name. Raises ValueError."""
    return [text[start + 1 : end - 1] for field in _named(text, name) for start, end in field.values]


def value_of(text: str, name: str) -> str | None:
    """Return the value of a field as it is written, a text without its quotes; None without it.

    Raises ValueError.
    """
    found = next((field.values[0] for field in _named(text, name) if field.values), None)
    return None if found is None else text[found[0] : found[1]].strip("'\"")


def with_bodies(text: str, name: str, new: Sequence[str | None]) -> str:
    """Return the text with new contents for the messages in the fields of this name, one each; None: without it.

    Raises ValueError.
    """
    waiting = list(new)
    for field in reversed(_named(text, name)):
        mine = [waiting.pop() for _ in field.values][::-1]
        if all(body is None for body in mine):
            text = _without(text, field)
        elif field.listed is not None and None in mine:
            pairs = zip(field.values, mine, strict=True)
            kept = [f"{text[start]}{body}{text[end - 1]}" for (start, end), body in pairs if body is not None]
            text = f"{text[: field.listed[0]]}[ {', '.join(kept)} ]{text[field.listed[1] :]}"
        else:
            for (start, end), body in reversed(list(zip(field.values, mine, strict=True))):
                text = f"{text[: start + 1]}{body}{text[end - 1 :]}"
    return text


def with_field(text: str, name: str, value: str, *, inside: bool = False) -> str:
    """Return the text with this field: in its old place, or else at the end; at the start `inside` of brackets.

    Raises ValueError.
    """
    old, field = _named(text, name), f"{name}: {value}"
    for other in reversed(old[1:]):
        text = _without(text, other)
    if old:
        return text[: old[0].start] + field + text[old[0].end :]
    return f" {field}{'' if text[:1].isspace() else ' '}{text}" if inside else added(text, f"{field}\n")


def without_field(text: str, name: str) -> str:
    """Return the text without the fields of this name, and without the lines that are empty then.

    Raises ValueError.
    """
    for field in reversed(_named(text, name)):
        text = _without(text, field)
    return text


def added(text: str, more: str) -> str:
    """Return the text with whole lines at its end, which end as its own lines do."""
    end = "\r\n" if "\r\n" in text else "\n"
    return f"{text}{'' if not text or text.endswith(end) else end}{more.replace(chr(10), end)}"


def _named(text: str, name: str) -> list[Field]:
    return [field for field in fields(text) if field.name == name]


def _without(text: str, field: Field) -> str:
    before, behind = text[: field.start], text[field.after :]
    line = re.match(r"[ \t]*(?:\r?\n|\Z)", behind)
    indent = re.search(r"(?:\A|(?<=\n))[ \t]*\Z", before)
    if line is not None and indent is not None:
        return before[: indent.start()] + behind[line.end() :]
    return before + behind


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise _error(text, at)
        at = found.end()
        if found.lastgroup != "gap":
            kind = found.group() if found.lastgroup == "mark" else str(found.lastgroup)
            yield kind, found.start(), found.end()


def _error(text: str, at: int) -> ValueError:
    return ValueError(f"line {text.count(chr(10), 0, at) + 1} is not that of a config.pbtxt")


def _fields(text: str, tokens: list[_Token]) -> Iterator[Field]:
    """Yield the fields; a token that does not fit, or the end of the text, is named by its line."""
    at, after = 0, [*tokens, ("", len(text), len(text))]
    while at < len(tokens):
        kind, start, end = after[at]
        first = at
        if kind == "[":  # the name of an extension
            at, end = _closed(text, after, at), after[_closed(text, after, at) - 1][2]
        elif kind == "word":
            at += 1
        else:
            raise _error(text, start)
        name = text[after[first][1] : end]
        colon = after[at][0] == ":"
        at += colon
        values, listed = [], None
        if after[at][0] == "[":
            stop = _closed(text, after, at)
            listed = (after[at][1], after[stop - 1][2])
            at += 1
            while at < stop - 1:
                value, at = _value(text, after, at)
                values.append(value)
                at += after[at][0] == ","
            at = stop
        elif colon or after[at][0] in ("{", "<"):
            value, at = _value(text, after, at)
            values.append(value)
        else:
            raise _error(text, after[at][1])
        end = after[at - 1][2]
        at += after[at][0] in (",", ";")
        yield Field(name, start, end, after[at - 1][2], tuple(values), listed)


def _value(text: str, tokens: list[_Token], at: int) -> tuple[tuple[int, int], int]:
    """Return the range of one value, and the number of the token behind it; strings in a row are one."""
    kind, start, _ = tokens[at]
    if kind in ("{", "<"):
        at = _closed(text, tokens, at)
    elif kind == "text":
        while tokens[at][0] == "text":
            at += 1
    elif kind == "word":
        at += 2 if text[start : tokens[at][2]] == "-" and tokens[at + 1][0] == "word" else 1
    else:
        raise _error(text, start)
    return (start, tokens[at - 1][2]), at


def _closed(text: str, tokens: list[_Token], at: int) -> int:
    """Return the number of the token behind the bracket that closes the one at `at`."""
    waiting = []
    for number in range(at, len(tokens)):
        kind = tokens[number][0]
        if kind in _CLOSING:
            waiting.append(_CLOSING[kind])
        elif kind in _CLOSING.values() and kind != waiting.pop():
            break
        if not waiting:
            return number + 1
    raise _error(text, tokens[at][1])
