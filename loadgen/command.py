"""What every command does around its work: errors become two lines on stderr and an exit code."""

from __future__ import annotations

import contextlib
import io
import signal
import sys
from typing import NoReturn

import typer

from loadgen.errors import LoadError, WorkerDied
from loadgen.printable import printable
from loadgen.user_errors import BadInput, EnvironmentFailed, UserError, environment_failed


def run_app(app: typer.Typer, arguments: list[str], *, name: str, when_stopped: str) -> int:
    """Run a command line and return its exit code; no exception leaves, unless `--debug` is given.

    `when_stopped` is what to do after Ctrl-C, the second line of that error.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(
            errors="backslashreplace"
        )  # a result is not lost for a terminal without its characters
    try:
        code = app(arguments, standalone_mode=False, prog_name=name)
    except typer.Abort:
        return 130
    except KeyboardInterrupt:
        return complain("Stopped.", when_stopped, 130)
    except Exception as error:
        if "--debug" in arguments:
            raise
        shown = _as_user_error(error, name)
        return complain(shown.what, shown.fix, shown.exit_code)
    return code if isinstance(code, int) else 0


def show_version() -> None:
    """What is installed, on stdout."""
    from importlib.metadata import version

    typer.echo(f"tritune {version('tritune')}")


def leave(code: int) -> NoReturn:
    """End the process with an exit code; another Ctrl-C on the way out changes nothing any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)


def complain(what: str, fix: str, code: int) -> int:
    """Say what happened and what to do about it, on stderr; returns `code`."""
    with contextlib.suppress(OSError):  # a full disk under stderr does not change the exit code
        print(f"error: {_shown(what)}", file=sys.stderr)  # noqa: T201
        print(f"       {_shown(fix)}", file=sys.stderr)  # noqa: T201
    return code


def _shown(text: str) -> str:
    """Part of an error, which may hold a server's log: more lines than one are indented under the first."""
    return printable(text, lines=True).rstrip("\n").replace("\n", "\n       ")


def _as_user_error(error: Exception, name: str) -> UserError:
    """Any error as two lines: our own, what the command-line parser complains about, or a bug."""
    if isinstance(error, UserError):
        return error
    if isinstance(error, LoadError):
        what, _, fix = str(error).partition("\n")
        return (ClientFailed if isinstance(error, WorkerDied) else BadInput)(what, fix)
    message = getattr(error, "format_message", None)
    if message is None:
        return unforeseen(error)
    text = " ".join(message().split())
    if text.startswith("No such command"):
        return BadInput(text, f"A value is one word, such as --p99 50ms. See {name} --help.")
    return BadInput(text, f"See {name} --help.")


def unforeseen(error: Exception) -> UserError:
    """An error that nobody has translated: of the environment if the system says so, else a bug."""
    if isinstance(error, OSError) and error.errno is not None:
        return environment_failed(error)
    if isinstance(error, MemoryError):
        return EnvironmentFailed("There is not enough memory.", "Free some, and run the command again.")
    return Bug(
        f"This is a bug in tritune: {type(error).__name__}: {error}",
        "Please report it with the output of the same command with --debug.",
    )


class Bug(UserError):
    """Our fault."""

    exit_code = 1


class ClientFailed(UserError):
    """The load could not be sent to its end, so nothing is known about the server."""

    exit_code = 98
