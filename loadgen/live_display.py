"""What moves at the bottom of a terminal while a command works."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.live import Live

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Self

    from rich.console import Console, RenderableType


class LiveDisplay(ABC):
    """Draws its picture four times a second, from `with` to the end of the block; only on a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.broken: Exception | None = None
        self._live: Live | None = None  # None: there is no terminal, or nothing is drawn now

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(
                get_renderable=self._drawn, console=self._console, refresh_per_second=4, transient=True
            )
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            with self.unharmed():
                self._live.__exit__(kind, error, trace)

    def _drawn(self) -> RenderableType:
        """The picture; or none where it cannot be drawn, as no measurement ends for a picture."""
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
        """What is to be seen now."""
