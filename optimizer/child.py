"""Call our own functions in a child process, so that a model cannot hang, crash or fill this one.

Libraries for models are native code: they cannot be interrupted, they keep memory for as long as their process
lives, and a small file can keep them busy for years. The child has a session of its own, so Ctrl-C reaches only
the parent, which ends the child. Calls and results travel as pickles between our own two processes; nothing of a
model is unpickled.
"""

from __future__ import annotations

import os
import pickle
import resource
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import IO, TypeVar

from loadgen.errors import UserError
from loadgen.files import naming
from loadgen.memory import memory_bytes
from loadgen.processes import die_with_parent, scratch_folder
from optimizer.errors import RunFailed, UnsupportedModel

PARENT = "TRITUNE_PARENT_PID"
"""The environment variable in which a child finds its parent's process id."""

TELEMETRY = "ORT_DISABLE_TELEMETRY"
"""Without this variable, ONNX Runtime queues paths and a device id for a foreign host, once it is imported."""

GIB = 2**30
MACHINE_SHARE = 0.8
"""A process that runs a model may take 80 % of the machine's memory."""

BASE_BYTES, BYTES_PER_BYTE = 4 * GIB, 8
"""A process that works on a graph may take 4 GiB, for libraries and small results, and 8 bytes per byte of the
model: it keeps several copies of the graph."""

BASE_S, S_PER_GIB = 120, 30
"""CPU time for work on a graph: 120 s, and 30 s per GiB of the model. To read 1 GiB and compute its checksum takes
a few seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildLimits:
    """Limits of a process: `memory_bytes` of data, without libraries and files, and `cpu_s`, None for no limit."""

    memory_bytes: int
    cpu_s: int | None = None


def machine_limits() -> ChildLimits:
    """Return the limits of a process that runs a model. The caller that waits for it limits its time."""
    return ChildLimits(memory_bytes=int(MACHINE_SHARE * memory_bytes()))


def graph_limits(size_bytes: int) -> ChildLimits:
    """Return the limits of work on the graph of a model with files of `size_bytes`."""
    return ChildLimits(
        memory_bytes=min(BASE_BYTES + BYTES_PER_BYTE * size_bytes, machine_limits().memory_bytes),
        cpu_s=BASE_S + S_PER_GIB * size_bytes // GIB,
    )


def environment_of_child() -> dict[str, str]:
    """Return the environment for a child that calls `begin_as_child`."""
    return {TELEMETRY: "1", **os.environ, PARENT: str(os.getpid())}


def begin_as_child(limits: ChildLimits | None) -> None:
    """Apply the limits, and make this process end with the parent that is named by `environment_of_child`.

    Children of a child may call this with wider limits.
    """
    if PARENT in os.environ:
        die_with_parent(int(os.environ[PARENT]))
    if limits is None:
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash must not fill the disk with the memory's contents
    for kind, limit in ((resource.RLIMIT_DATA, limits.memory_bytes), (resource.RLIMIT_CPU, limits.cpu_s)):
        _, hard = resource.getrlimit(kind)
        finite = [one for one in (limit, hard) if one is not None and one != resource.RLIM_INFINITY]
        resource.setrlimit(kind, (min(finite, default=resource.RLIM_INFINITY), hard))


T = TypeVar("T")

COMMAND = (sys.executable, "-P", "-m", "optimizer.child")
"""-P keeps the current directory off the import path: a folder in it may have the name of one of our packages."""

CALL, OUTCOME = "call.pickle", "outcome.pickle"

_EXPORT_AGAIN = "Export it again. If ONNX Runtime runs it, please report this, with the output of --debug."


class ChildFailed(Exception):
    """The call did not return. `trace` is the child's traceback or its stderr, for `--debug`."""

    def __init__(self, reason: str, trace: str) -> None:
        super().__init__(f"{reason}\n{trace}")
        self.reason = reason
        self.trace = trace


class ChildTimedOut(ChildFailed):
    """The child did not end in time."""


class ChildCrashed(ChildFailed):
    """The child ended without an outcome. `returncode` is negative if a signal ended it."""

    def __init__(self, returncode: int, trace: str) -> None:
        how = signal.Signals(-returncode).name if returncode < 0 else f"exit code {returncode}"
        super().__init__(how, trace)
        self.returncode = returncode


class ChildRaised(ChildFailed):
    """The call raised an error that is not ours.

    `reason` is its type and message; `error` is the error itself if it is an OSError, else None.
    """

    def __init__(self, reason: str, trace: str, error: OSError | None) -> None:
        super().__init__(reason, trace)
        self.error = error


def call_in_child(
    call: Callable[[], T], *, limits: ChildLimits | None = None, timeout_s: float | None = None
) -> T:
    """Run `call` (a function of a module, or a `partial` of one) in a child process, and return its result.

    The child ends when this process ends, and its temporary files are removed. Raises the UserError or RunFailed
    that `call` raises there, and ChildFailed if it does not return for any other reason.
    """
    with scratch_folder("child") as scratch:
        with (scratch / CALL).open("wb") as file:
            pickle.dump(limits, file)
            pickle.dump(call, file)
        returncode, stderr = _ended(scratch, timeout_s)
        if returncode != 0 or not (scratch / OUTCOME).exists():
            raise ChildCrashed(returncode, stderr.decode(errors="replace"))
        result, error, reason, trace = pickle.loads((scratch / OUTCOME).read_bytes())  # noqa: S301 - see `main`
    if not trace:
        return result  # type: ignore[no-any-return]
    if error is None or isinstance(error, OSError):
        raise ChildRaised(reason, trace, error)
    raise error from ChildFailed(reason, trace)


def call_limited(call: Callable[[], T], *, model: Path, limits: ChildLimits) -> T:
    """Run `call` (a function of a module, or a `partial` of one) in a child process, and return its result.

    Raises the UserError or OSError that `call` raises there, and UnsupportedModel, which names `model`, if the
    child exceeds the limits, crashes, or raises anything else.
    """
    try:
        return call_in_child(call, limits=limits)
    except ChildCrashed as error:
        raise _crashed(model, limits, error) from error
    except ChildRaised as error:
        if error.error is not None:
            raise error.error from error
        if error.reason.startswith(MemoryError.__name__):
            raise UnsupportedModel(
                f"Reading {model} took more than {limits.memory_bytes / GIB:.1f} GiB of memory, "
                "so it was stopped.",
                "Look for constants or shapes of an absurd size; export the model again.",
            ) from error
        words = " ".join(error.reason.split())[:300]
        raise UnsupportedModel(f"{model} cannot be prepared: {words}.", _EXPORT_AGAIN) from error


def _crashed(model: Path, limits: ChildLimits, error: ChildCrashed) -> UnsupportedModel:
    if -error.returncode == signal.SIGXCPU:
        return UnsupportedModel(
            f"Reading {model} took more than {limits.cpu_s} s of processor time, so it was stopped.",
            "Simplify the model: nested functions or subgraphs may make it far larger than its file.",
        )
    if -error.returncode == signal.SIGKILL:
        return UnsupportedModel(
            f"The process that read {model} was killed, probably for lack of memory.",
            "Free some memory, or use a machine with more.",
        )
    return UnsupportedModel(f"Reading {model} crashed the ONNX library ({error.reason}).", _EXPORT_AGAIN)


_running: set[subprocess.Popen[bytes]] = set()


def _ended(scratch: Path, timeout_s: float | None) -> tuple[int, bytes]:
    """Run the child to its end; return its exit code and stderr. Raises ChildTimedOut."""
    with subprocess.Popen(
        [*COMMAND, str(scratch)],
        env={**environment_of_child(), "TMPDIR": str(scratch)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        _running.add(process)
        try:
            _, stderr = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as expired:
            process.kill()
            raise ChildTimedOut(f"no result within {timeout_s:g} s", "") from expired
        except BaseException:
            process.kill()
            raise
        finally:
            _running.discard(process)
    return process.returncode, stderr


@contextmanager
def threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """Yield a pool of threads that call functions in children.

    If the block is left early, as by Ctrl-C, calls that have not started never start, and all children are ended,
    those too that a call starts because its first one was ended.
    """
    pool = ThreadPoolExecutor(max_workers=count)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        ended = Thread(target=pool.shutdown)
        ended.start()
        while ended.is_alive():
            for process in tuple(_running):
                process.kill()
            ended.join(0.02)
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def main(folder: Path) -> None:
    """Run the call in `folder` and write its outcome there. The limits are set before the call is read."""
    with (folder / CALL).open("rb") as file:
        begin_as_child(pickle.load(file))  # noqa: S301 - written by `call_in_child`
        outcome = _outcome(file)
    try:
        _write(outcome, folder / OUTCOME)
    except OSError as error:  # there is room for less: a full disk, or a limit on the size of files
        _write((None, error, f"{type(error).__name__}: {error}", "-"), folder / OUTCOME)
    sys.stderr.flush()
    os._exit(0)  # to take PyTorch and a model apart takes 0.5 s and more, and nobody waits for it


def _write(outcome: object, path: Path) -> None:
    with naming(path), path.open("wb") as file:
        pickle.dump(outcome, file)


def _outcome(file: IO[bytes]) -> tuple[object, Exception | None, str, str]:
    """Return the result; or the error, its type and message, and its traceback.

    The error is None if its type is a library's.
    """
    try:
        return pickle.load(file)(), None, "", ""  # noqa: S301 - written by `call_in_child`
    except Exception as error:  # the libraries have no common base for their errors
        known = error if isinstance(error, UserError | RunFailed | OSError) else None
        return None, known, f"{type(error).__name__}: {error}", traceback.format_exc()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
