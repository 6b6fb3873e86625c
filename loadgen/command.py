"""What every command does around its work: errors become two lines on stderr and an exit code."""

from __future__ import annotations

import sys

import typer

from loadgen.user_errors import BadInput, UserError


def run_app(app: typer.Typer, arguments: list[str], *, name: str, when_stopped: str) -> int:
    """Run a command line and return its exit code; no exception leaves, unless `--debug` is given.

    `when_stopped` is what to do after Ctrl-C, the second line of that error.
    """
    debug = "--debug" in arguments
    try:
        code = app(arguments, standalone_mode=False, prog_name=name)
    except UserError as error:
        if debug:
            raise
        return complain(error.what, error.fix, error.exit_code)
    except typer.Abort:
        return 130
    except KeyboardInterrupt:
        return complain("Stopped.", when_stopped, 130)
    except Exception as error:
        if debug:
            raise
        bad_input = _usage_error(error, name)
        if bad_input is not None:
            return complain(bad_input.what, bad_input.fix, bad_input.exit_code)
        return complain(
            f"This is a bug in tritune: {type(error).__name__}: {error}",
            "Please report it with the output of the same command with --debug.",
            1,
        )
    return code if isinstance(code, int) else 0


def complain(what: str, fix: str, code: int) -> int:
    """Say what happened and what to do about it, on stderr; returns `code`."""
    print(f"error: {what}", file=sys.stderr)  # noqa: T201
    print(f"       {fix}", file=sys.stderr)  # noqa: T201
    return code


def _usage_error(error: Exception, name: str) -> BadInput | None:
    """What the command-line parser complains about, as one of our errors; None for anything else."""
    message = getattr(error, "format_message", None)
    if message is None:
        return None
    text = " ".join(message().split())
    if text.startswith("No such command"):
        return BadInput(text, f"A value is one word, such as --p99 50ms. See {name} --help.")
    return BadInput(text, f"See {name} --help.")
