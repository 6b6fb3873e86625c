"""Run a command line: errors become two lines, files and an exit code; Ctrl-C finishes or stops."""

from __future__ import annotations

import io
import json
import resource
import shutil
import signal
import sys
import textwrap
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from types import FrameType
from typing import Any, NoReturn
from xml.sax.saxutils import escape, quoteattr

import typer

from loadgen.errors import (
    BadInput,
    ClientFailed,
    EnvironmentFailed,
    Interrupted,
    LoadError,
    UserError,
    WorkerDied,
    unforeseen,
)
from loadgen.files import write_atomically
from loadgen.printable import printable

_JUNIT = """<?xml version="1.0" encoding="UTF-8"?>
<testsuites><testsuite name="loadtest" tests="1" failures="0" errors="1">
<testcase classname="loadtest" name="the answer as a whole" time="0"><error message={}>{}</error></testcase>
</testsuite></testsuites>
"""


def write_failure(failure: UserError, asked: Mapping[str, Any]) -> None:
    """Print the error for --json, and write it to the files of --output and --junit; other files stay as they are.

    `asked` are the values of options by name, as far as they were read. What cannot be written is no other error.
    """
    text = json.dumps({"error": {name: getattr(failure, name) for name in ("exit_code", "status", "what", "fix")}})
    if asked["json"]:
        from loadgen.console import print_result  # brings in rich

        print_result(lambda: f"{text}\n")
    what, fix = (printable(line, lines=True) for line in (failure.what, failure.fix))
    for name, document in (("output", f"{text}\n"), ("junit", _JUNIT.format(quoteattr(what), escape(fix)))):
        path = asked.get(name)
        with suppress(OSError, ValueError):
            if path is not None and (path.is_file() or not path.exists()):
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, document)


def run_app(
    app: typer.Typer,
    arguments: list[str],
    *,
    name: str,
    when_stopped: str,
    on_failure: Callable[[UserError, Mapping[str, Any]], object] = write_failure,
) -> int:
    """Run a command line and return its exit code; no exception leaves. `--debug` prints its traceback.

    `when_stopped` is the advice after Ctrl-C, the second line of that error. `on_failure` gets every error
    before it is printed, and the values of options as far as they were read, `json` at least.
    """
    asked: dict[str, Any] = {"json": "--json" in arguments}
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(
            errors="backslashreplace"
        )  # no result is lost for a terminal without its characters
    try:
        code = app(arguments, standalone_mode=False, prog_name=name, obj=asked)
    except (typer.Abort, KeyboardInterrupt):
        failure: UserError = Interrupted("Stopped.", when_stopped)
    except Interrupted as error:
        failure = Interrupted(error.what, error.fix or when_stopped)
    except Exception as error:
        if "--debug" in arguments:
            with suppress(OSError):
                print(printable(traceback.format_exc(), most=1 << 20, lines=True), file=sys.stderr)  # noqa: T201
        failure = as_user_error(error, name)
    else:
        return code if isinstance(code, int) else 0
    on_failure(failure, asked)
    return complain(failure.what, f"{failure.fix} {failure.kept}".rstrip(), failure.exit_code)


NEEDED_GIB = {"loadtest": 1, "optimize": 4}
"""Address space of each process. On 2 cores loadtest needs 0.2 GiB, and Triton more than 2; cores add to it."""


def check_address_space(command: str) -> None:
    """Raise EnvironmentFailed for a limit below that. Call it before libraries, which would wait without end."""
    gib, (limit, _) = NEEDED_GIB[command], resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < gib * 2**30:
        raise EnvironmentFailed(
            f"The limit of address space (ulimit -v) is {limit / 2**30:.3g} GiB, and {command} needs {gib} GiB.",
            "Raise it, such as with ulimit -v unlimited; a control group limits memory better.",
        )


def show_version() -> None:
    """Print the installed version."""
    from importlib.metadata import version

    typer.echo(f"tritune {version('tritune')}")


def leave(code: int) -> NoReturn:
    """End the process with an exit code; another Ctrl-C on the way out changes nothing any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)


def complain(what: str, fix: str, code: int) -> int:
    """Print an error in two lines on stderr: what happened, and what to do. Returns `code`."""
    with suppress(OSError):  # a full disk under stderr does not change the exit code
        print(f"error: {_shown(what)}", file=sys.stderr)  # noqa: T201
        print(f"       {_shown(fix)}", file=sys.stderr)  # noqa: T201
    return code


def _shown(text: str) -> str:
    """Part of an error, which may hold a server's log: more lines than one are indented under the first.

    A terminal gets lines that end with a word, which it would break anywhere.
    """
    indent, lines = " " * len("error: "), printable(text, lines=True).rstrip("\n").split("\n")
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns - len(indent)
        wrapped = textwrap.TextWrapper(max(20, width), break_long_words=False, break_on_hyphens=False)
        lines = [part for line in lines for part in wrapped.wrap(line) or [""]]
    return f"\n{indent}".join(lines)


def as_user_error(error: Exception, name: str) -> UserError:
    """Return any error as two lines: one of ours, one of the command-line parser, or a bug."""
    if isinstance(error, UserError):
        return error
    if isinstance(error, LoadError):
        what, _, fix = str(error).partition("\n")
        return (ClientFailed if isinstance(error, WorkerDied) else BadInput)(what, fix)
    message = getattr(error, "format_message", None)
    if message is None:
        return unforeseen(error)
    text = " ".join(message().split())
    name = getattr(getattr(error, "ctx", None), "command_path", name)  # of a subcommand: with its name
    if text.startswith("No such command"):
        return BadInput(text, f"A value is one word, such as --p99 50ms. See {name} --help.")
    return BadInput(text, f"See {name} --help.")


@contextmanager
def _handling(on_signal: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Until the block ends, handle what ends a run, SIGHUP too, of a terminal that closes, but for nohup."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    numbers = (signal.SIGINT, signal.SIGTERM, *(() if ignored else (signal.SIGHUP,)))
    before = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Stop:
    """True if the user has asked to finish; a callable, as the search wants it."""

    def __init__(self) -> None:
        self.asked = False
        self.at_once: str | None = None
        """The signal that asked to stop now."""

    def __call__(self) -> bool:
        """True if the run should finish. Raises KeyboardInterrupt if a second signal was lost.

        Python drops an exception of a signal handler that runs while an object is cleaned up.
        """
        if self.at_once is not None:
            raise KeyboardInterrupt(self.at_once)
        return self.asked


@contextmanager
def finish_on_first_interrupt(announce: Callable[[], None]) -> Iterator[Stop]:
    """Until the block ends, the first SIGINT, SIGTERM or SIGHUP sets `Stop` and calls `announce`; the next raises.

    All are treated alike, so that a scheduler that ends the job gets the best answer so far. `announce` is called
    in a thread: the signal may come while this one writes, with a lock that a live display waits for.
    """
    stop, signalled = Stop(), threading.Event()

    def tell() -> None:
        signalled.wait()
        if stop.asked:
            announce()

    def on_signal(number: int, frame: FrameType | None) -> None:
        del frame
        if stop.asked:
            stop.at_once = signal.Signals(number).name
            raise KeyboardInterrupt(stop.at_once)
        stop.asked = True
        signalled.set()

    telling = threading.Thread(target=tell, daemon=True)
    telling.start()
    try:
        with _handling(on_signal):
            yield stop
    finally:
        signalled.set()
        telling.join()


@contextmanager
def stop_on_first_interrupt() -> Iterator[None]:
    """Until the block ends, SIGINT, SIGTERM and SIGHUP raise at once, within `finish_on_first_interrupt` too.

    For work before there is any result that a run could finish with. In a thread other than the main one, which
    no signal reaches, it changes nothing. If Python drops the exception, it is raised as the block ends.
    """
    asked: str | None = None

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        del frame
        asked = signal.Signals(number).name
        raise KeyboardInterrupt(asked)

    with _handling(on_signal) if threading.current_thread() is threading.main_thread() else nullcontext():
        yield
    if asked is not None:
        raise KeyboardInterrupt(asked)
