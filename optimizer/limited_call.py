"""Our own functions called in a child process with limits, so that no model hangs, crashes or fills this one.

ONNX's checker, its inference and its converters are native code: they cannot be interrupted, and a small file can
keep them busy for years. The child has a session of its own, so Ctrl-C reaches the parent alone, which ends the
child. Calls and results travel as pickles between our own two processes; nothing of a model is unpickled.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import traceback
from typing import TYPE_CHECKING, Any, TypeVar

from loadgen.scratch import scratch_folder
from optimizer.child_limits import GIB, begin_as_child, environment_of_child
from optimizer.errors import UnsupportedModel, UserError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from optimizer.child_limits import ChildLimits

T = TypeVar("T")

CHILD = (sys.executable, "-P", "-m", "optimizer.limited_call")
"""-P: a folder in the current directory that is named like one of our packages must not come first."""


class RaisedInChild(Exception):
    """The traceback of what was raised in the child, for `--debug`."""


def call_limited(call: Callable[[], T], *, model: Path, limits: ChildLimits) -> T:
    """Return what `call` (a function of a module, or a `partial` of one) returns in a child process.

    Raises the UserError or OSError that it raises there, and UnsupportedModel, naming `model`, if the child takes
    more than the limits, crashes, or raises anything else.
    """
    with scratch_folder("model") as scratch:
        ended = subprocess.run(
            CHILD,
            input=pickle.dumps((call, limits)),
            capture_output=True,
            check=False,
            env={**environment_of_child(), "TMPDIR": str(scratch)},  # a child that is killed leaves nothing behind
            start_new_session=True,
        )
    if ended.returncode != 0:
        said = ended.stderr.decode(errors="replace")[-2000:]
        raise _crashed(model, limits, ended.returncode) from RaisedInChild(said)
    outcome, result, trace = pickle.loads(ended.stdout)  # noqa: S301 - written by `main` below
    if outcome == "returned":
        return result  # type: ignore[no-any-return]
    raise _raised(model, limits, result) from RaisedInChild(trace)


def _crashed(model: Path, limits: ChildLimits, returncode: int) -> UnsupportedModel:
    if -returncode == signal.SIGXCPU:
        return UnsupportedModel(
            f"Reading {model} took more than {limits.cpu_s} s of processor time, so it was stopped.",
            "Simplify the model: nested functions or subgraphs may make it far larger than its file.",
        )
    if -returncode == signal.SIGKILL:
        return UnsupportedModel(
            f"The process that read {model} was killed, probably for lack of memory.",
            "Free some memory, or use a machine with more.",
        )
    how = signal.Signals(-returncode).name if returncode < 0 else f"exit code {returncode}"
    return UnsupportedModel(f"Reading {model} crashed the ONNX library ({how}).", _EXPORT_AGAIN)


def _beyond_memory(model: Path, limits: ChildLimits) -> UnsupportedModel:
    return UnsupportedModel(
        f"Reading {model} took more than {limits.memory_bytes / GIB:.1f} GiB of memory, so it was stopped.",
        "Look for constants or shapes of an absurd size; export the model again.",
    )


def _raised(model: Path, limits: ChildLimits, error: Any) -> Exception:
    """What to raise for what the child raised: (type, what, fix) of a UserError, an OSError, or words."""
    if isinstance(error, tuple):
        kind, what, fix = error
        refused: UserError = kind(what, fix)
        return refused
    if isinstance(error, OSError):
        return error
    if error == MemoryError.__name__:
        return _beyond_memory(model, limits)
    return UnsupportedModel(f"{model} cannot be prepared: {error}.", _EXPORT_AGAIN)


_EXPORT_AGAIN = "Export it again. If ONNX Runtime runs it, please report this, with the output of --debug."


def main() -> None:
    """The child: the call comes on stdin, the outcome goes to stdout, what libraries print to stderr."""
    with os.fdopen(os.dup(1), "wb") as outcome:
        os.dup2(2, 1)
        call, limits = pickle.load(sys.stdin.buffer)  # noqa: S301 - written by `call_limited`
        begin_as_child(limits)
        pickle.dump(_outcome(call), outcome)


def _outcome(call: Callable[[], object]) -> tuple[str, object, str]:
    try:
        return "returned", call(), ""
    except UserError as error:
        return "raised", (type(error), error.what, error.fix), traceback.format_exc()
    except OSError as error:
        return "raised", error, traceback.format_exc()
    except MemoryError:
        return "raised", MemoryError.__name__, traceback.format_exc()
    except Exception as error:  # ONNX's libraries have no common base for their errors
        words = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        return "raised", words, traceback.format_exc()


if __name__ == "__main__":
    main()
