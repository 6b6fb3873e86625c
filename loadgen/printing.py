"""The result of a command on stdout, where nothing about showing it may lose it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.command import unforeseen
from loadgen.user_errors import EnvironmentFailed, UserError

if TYPE_CHECKING:
    from collections.abc import Callable


def print_result(show: Callable[[], None], *, document: Callable[[], str]) -> list[UserError]:
    """Let `show` print the result, or print `document`, its JSON, if that has a bug. Returns what went wrong."""
    try:
        try:
            show()
        except OSError:
            raise
        except Exception as error:
            sys.stdout.write(document())
            sys.stdout.flush()
            return [unforeseen(error)]
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads, `head` for one, has seen enough
        _drop_stdout()
    except OSError as error:
        _drop_stdout()
        return [EnvironmentFailed(f"The result could not be printed: {error.strerror}.", "Files still hold it.")]
    return []


def _drop_stdout() -> None:
    """Or the interpreter would try again at its end, and fail again."""
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
