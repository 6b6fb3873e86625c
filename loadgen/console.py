"""The console that both commands print with: it cannot be steered by what is printed."""

from __future__ import annotations

import contextlib
import io
import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.segment import Segment

from loadgen.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import ConsoleOptions, RenderableType

_MOST_IN_A_PIECE = 100_000  # characters; what is long on purpose is cut where it comes in


class _Stderr(io.TextIOBase):
    """Whatever stderr is at the moment, for messages whose loss must not end the work: its disk may be full."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):  # ValueError: it is closed
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()

    def isatty(self) -> bool:
        return sys.stderr.isatty()

    def fileno(self) -> int:
        return sys.stderr.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return sys.stderr.encoding


class SafeConsole(Console):
    """Rich's console; characters that are not printable come out as escapes, whatever object they stand in.

    Colours and cursor movements of Rich itself are unharmed. A plain string is plain: what has markup on purpose
    is printed as `Text.from_markup`. With `stderr`, a stderr that takes no more ends nothing.
    """

    def __init__(self, **options: Any) -> None:
        if options.pop("stderr", False):
            options["file"] = _Stderr()
        super().__init__(**{"markup": False, "emoji": False, **options})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The pieces of text that the object consists of."""
        for piece in super().render(renderable, options):
            if piece.control is None and not piece.text.isprintable():
                yield Segment(printable(piece.text, most=_MOST_IN_A_PIECE, lines=True), piece.style)
            else:
                yield piece
