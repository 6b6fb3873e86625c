"""Quote the values in templates by a library, or make sure that they need no quotes in any file of a bundle."""

from __future__ import annotations

import math
import re
import shlex
import textwrap
from collections.abc import Callable
from typing import Any

import yaml
from markupsafe import Markup

from loadgen.printable import printable
from loadgen.records.formats import format_ms
from loadgen.spec.limits import quantile_name, quantile_option
from search.labels import memory_text

PLAIN = re.compile(r"/?[A-Za-z0-9_](?:[A-Za-z0-9_./:@%,+-]*[A-Za-z0-9_])?")
"""A value that cannot end a line, quote, comment or command: names, numbers, addresses, images."""

COMMENT_WIDTH = 115


class NotPlain(ValueError):
    """A template shows a value without the quotes that it needs, which is a bug of the template."""


def plain(value: Any) -> Any:
    """Return a value that may be shown as it is: text that a filter below has quoted, a number, or plain text.

    Jinja calls this for every `{{ value }}`. Raises NotPlain for text that has to be quoted.
    """
    if isinstance(value, Markup | int | float) or (isinstance(value, str) and PLAIN.fullmatch(value)):
        return value
    raise NotPlain(f"{value!r} is shown without quotes: use a filter of deploy/quoting.py")


def prose(value: Any) -> Any:
    """Return the same for Markdown; other text becomes one line without links, HTML and ends of table cells."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return re.sub(r"([\\`\[\]|])", r"\\\1", printable(value)).replace("<", "&lt;").replace(">", "&gt;")
    return plain(value)


def yaml_scalar(text: str, style: str = '"') -> Markup:
    """Return the text as a YAML scalar on one line; `style` is the quote, if all of the text is printable."""
    if not text.isprintable():
        style = '"'
    scalar = yaml.safe_dump(text, default_style=style, width=math.inf, allow_unicode=True)
    return Markup(scalar.removesuffix("\n"))  # noqa: S704 - nothing of it is HTML


def block(text: str, indent: int) -> Markup:
    """Return the text as a YAML block with lines indented by `indent` blanks; quoted if no block can hold it."""
    scalar = yaml.safe_dump(text, default_style="|", width=math.inf, allow_unicode=True).removesuffix("\n")
    return Markup(scalar.replace("\n  ", "\n" + " " * indent))  # noqa: S704


def argument(text: str) -> Markup:
    """Return a command's argument for YAML. Kubernetes and Compose replace `$(NAME)`, `${NAME}`, but not `$$`."""
    return yaml_scalar(text.replace("$", "$$"))


def one_line(text: str) -> Markup:
    """Return the text on one line, for a comment."""
    return Markup(printable(text))  # noqa: S704


def comment(text: str) -> Markup:
    """Return the text as lines of a comment."""
    lines = textwrap.wrap(printable(text, most=10_000), width=COMMENT_WIDTH - 2)
    return Markup("\n".join(f"# {line}" for line in lines))  # noqa: S704


def code(text: str) -> Markup:
    """Return the text for the place between two backticks in Markdown, also in a table."""
    return Markup(printable(text).replace("`", "'").replace("|", "/"))  # noqa: S704


def shell(text: str) -> Markup:
    """Return the text as one word of a shell's command line."""
    return Markup(shlex.quote(printable(text)))  # noqa: S704


def go_text(text: str) -> str:
    """Return the text for a Go template, such as an annotation of an alert: there, `{{` would begin an action."""
    return printable(text).replace("{{", '{{"{{"}}')


FILTERS: dict[str, Callable[..., str]] = {
    "argument": argument,
    "block": block,
    "code": code,
    "comment": comment,
    "exact": "{:.9g}".format,
    "go_text": go_text,
    "memory": memory_text,
    "ms": format_ms,
    "one_line": one_line,
    "option": quantile_option,
    "quantile": quantile_name,
    "shell": shell,
    "usd": "{:.4g}".format,
    "yaml": yaml_scalar,
}
