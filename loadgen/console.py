"""Print for both commands: a console that printed text cannot control, a live display, the result."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.segment import Segment

from loadgen.errors import EnvironmentFailed, UserError, unforeseen
from loadgen.printable import printable

_MAX_IN_A_PIECE = 100_000  # characters; longer texts from outside are cut when they are read


class _Stderr:
    """The current stderr, for messages whose loss must not end the work: its disk may be full."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):  # ValueError: it is closed
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()


class SafeConsole(Console):
    """Rich's console; it prints characters that are not printable as escapes, in any object.

    Colours and cursor movements of Rich itself still work. A plain string is plain: intended markup is printed as
    `Text.from_markup`. With `stderr`, a failing stderr is ignored.
    """

    def __init__(self, **options: Any) -> None:
        if options.pop("stderr", False):
            options["file"] = _Stderr()
        super().__init__(**{"markup": False, "emoji": False, **options})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the pieces of text of the object."""
        for piece in super().render(renderable, options):
            if piece.control is None and not piece.text.isprintable():
                yield Segment(printable(piece.text, most=_MAX_IN_A_PIECE, lines=True), piece.style)
            else:
                yield piece


class LiveDisplay(ABC):
    """Draws its picture four times per second during its `with` block; only on a terminal that can erase it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.broken: Exception | None = None
        self._live: Live | None = None  # None: nothing can be drawn, or nothing is drawn now

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            # Redirected, stderr would print to the console that writes to it: both wait for one lock, for ever.
            self._live = Live(
                get_renderable=self._drawn,
                console=self._console,
                refresh_per_second=4,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            with self.unharmed():
                self._live.__exit__(None, None, None)

    def _drawn(self) -> RenderableType:
        """Return the picture; an empty one if drawing fails, so that the measurement goes on."""
        try:
            return self._picture()
        except Exception as error:
            self.broken = self.broken or error
            return ""

    @contextmanager
    def unharmed(self) -> Iterator[None]:
        """Remember the first error of the block in `broken`, instead of raising it."""
        try:
            yield
        except Exception as error:
            self.broken = self.broken or error

    @abstractmethod
    def _picture(self) -> RenderableType:
        """Return the present picture."""


def print_result(document: Callable[[], str], view: Callable[[], RenderableType] | None = None) -> list[UserError]:
    """Print a result on stdout: its `view`, or `document`, its JSON, without one or if that has a bug.

    Returns the errors.
    """
    try:
        try:
            if view is not None:
                SafeConsole().print(view(), crop=False)
            else:
                sys.stdout.write(document())
        except OSError:
            raise
        except Exception as error:
            sys.stdout.write(document())
            sys.stdout.flush()
            return [unforeseen(error)]
        sys.stdout.flush()
    except OSError as error:
        with Path(os.devnull).open("w") as nowhere:  # at its end the interpreter would flush again, and fail again
            os.dup2(nowhere.fileno(), 1)
        # A reader such as `head` has seen enough, or a terminal is gone.
        if error.errno in (errno.EPIPE, errno.EIO):
            return []
        return [EnvironmentFailed(f"The result could not be printed: {error.strerror}.", "Files still hold it.")]
    return []
