"""Values in templates: quoted by a library, or so plain that they need no quotes in any file of a bundle."""

from __future__ import annotations

import math
import re
import shlex
import textwrap
from typing import TYPE_CHECKING, Any

import yaml
from markupsafe import Markup

from loadgen.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable

PLAIN = re.compile(r"/?[A-Za-z0-9_](?:[A-Za-z0-9_./:@%,+-]*[A-Za-z0-9_])?")
"""A value that ends no line, quote, comment or command, wherever it stands: names, numbers, addresses, images."""

COMMENT_WIDTH = 115


class NotPlain(ValueError):
    """A template shows a value that needs quotes without any: a fault of the template."""


def plain(value: Any) -> Any:
    """Return what a template shows as it is: text that a filter below has quoted, numbers, and plain text.

    Jinja calls this for every `{{ value }}`. Raises NotPlain for text that has to be quoted.
    """
    if isinstance(value, Markup | int | float) or (isinstance(value, str) and PLAIN.fullmatch(value)):
        return value
    raise NotPlain(f"{value!r} is shown without quotes: use a filter of deploy/quoting.py")


def prose(value: Any) -> Any:
    """The same in Markdown, where other text becomes one line without links, HTML and ends of table cells."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return re.sub(r"([\\`\[\]|])", r"\\\1", printable(value)).replace("<", "&lt;").replace(">", "&gt;")
    return plain(value)


def yaml_scalar(text: str, style: str = '"') -> Markup:
    """The text as a YAML scalar on one line; `style` is the quote, where the text can stand in it."""
    if not text.isprintable():
        style = '"'
    scalar = yaml.safe_dump(text, default_style=style, width=math.inf, allow_unicode=True)
    return Markup(scalar.removesuffix("\n"))  # noqa: S704 - nothing of it is HTML


def block(text: str, indent: int) -> Markup:
    """The text as a block of lines, so many blanks from the left; quoted where no block can hold it."""
    scalar = yaml.safe_dump(text, default_style="|", width=math.inf, allow_unicode=True).removesuffix("\n")
    return Markup(scalar.replace("\n  ", "\n" + " " * indent))  # noqa: S704


def argument(text: str) -> Markup:
    """A command's argument in YAML. Kubernetes and Compose replace `$(NAME)` and `${NAME}`, but not `$$`."""
    return yaml_scalar(text.replace("$", "$$"))


def one_line(text: str) -> Markup:
    """The text within a comment."""
    return Markup(printable(text))  # noqa: S704


def comment(text: str) -> Markup:
    """The text as lines of a comment."""
    lines = textwrap.wrap(printable(text, most=10_000), width=COMMENT_WIDTH - 2)
    return Markup("\n".join(f"# {line}" for line in lines))  # noqa: S704


def code(text: str) -> Markup:
    """The text between two backticks in Markdown, also within a table."""
    return Markup(printable(text).replace("`", "'").replace("|", "/"))  # noqa: S704


def shell(text: str) -> Markup:
    """The text as one word of a shell's command line."""
    return Markup(shlex.quote(printable(text)))  # noqa: S704


def go_text(text: str) -> str:
    """The text within a Go template, such as an annotation of an alert, where `{{` would begin an action."""
    return printable(text).replace("{{", '{{"{{"}}')


FILTERS: dict[str, Callable[..., str]] = {
    "argument": argument,
    "block": block,
    "code": code,
    "comment": comment,
    "go_text": go_text,
    "one_line": one_line,
    "shell": shell,
    "yaml": yaml_scalar,
}
