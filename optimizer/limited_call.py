"""Prepare a model in a child process with limits, and report the exceeded limit if it fails."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from optimizer.child import ChildCrashed, ChildRaised, call_in_child
from optimizer.errors import UnsupportedModel
from optimizer.machine.child_limits import GIB, ChildLimits

T = TypeVar("T")

_EXPORT_AGAIN = "Export it again. If ONNX Runtime runs it, please report this, with the output of --debug."


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
            raise _beyond_memory(model, limits) from error
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


def _beyond_memory(model: Path, limits: ChildLimits) -> UnsupportedModel:
    return UnsupportedModel(
        f"Reading {model} took more than {limits.memory_bytes / GIB:.1f} GiB of memory, so it was stopped.",
        "Look for constants or shapes of an absurd size; export the model again.",
    )
