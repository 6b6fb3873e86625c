"""Run models with ONNX Runtime in a child process, and compare their results.

A crash, a leak or a flood of warnings stays in the child.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from loadgen.processes import scratch_folder
from optimizer.child import ChildCrashed, ChildLimits, ChildTimedOut, call_in_child, machine_limits
from optimizer.errors import RunFailed

T = TypeVar("T")

UNEQUAL_INTEGERS = 1e-3
"""Integer results (such as classes of pixels) count as different if more than 0.1 % of them differ; rounding may
change the others."""


def difference(expected: NDArray[Any], actual: NDArray[Any], tolerance: float) -> str:
    """Return the difference of two results beyond `tolerance`, in words; "" if there is none. NaN equals NaN."""
    if expected.shape != actual.shape:
        return f"has shape {actual.shape} instead of {expected.shape}"
    if expected.dtype.kind != "f":
        unequal = float(np.mean(expected != actual)) if expected.size else 0.0
        return f"differs in {unequal:.2%} of its elements" if unequal > UNEQUAL_INTEGERS else ""
    off = distance(expected, actual)
    return f"is off by {off:.2%} of its largest value" if not off <= tolerance else ""


def distance(expected: NDArray[Any], actual: NDArray[Any]) -> float:
    """Return the largest difference over the largest value of `expected`; inf if only one of the two is finite."""
    a, b = expected.astype(np.float64), actual.astype(np.float64)
    finite = np.isfinite(a)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(b[finite]).all():
        return np.inf
    largest = np.abs(a[finite]).max(initial=0.0)
    gap = np.abs(a[finite] - b[finite]).max(initial=0.0)
    return float(gap / largest) if largest > 0 else float(np.inf if gap > 0 else 0.0)


Tensors = dict[str, "NDArray[np.generic]"]
"""Arrays by the name of an input or output."""

RUN_TIMEOUT_S = 300.0


def run_model(
    path: Path,
    feeds: Sequence[Mapping[str, NDArray[Any]]],
    *,
    optimized: bool = True,
    threads: int | None = None,
    timeout_s: float = RUN_TIMEOUT_S,
) -> list[Tensors]:
    """Return all outputs of the model for each of `feeds`, in order, computed on the CPU. Raises RunFailed.

    Without feeds it is only loaded. Outputs that are not tensors are left out. Arrays travel as .npz files
    without pickles. If not `optimized`, ONNX Runtime runs the graph node by node as it stands.
    `threads` None: one per processor.
    """
    load = partial(session_of, path, optimized=optimized, threads=threads)
    return run_feeds(load, feeds, limits=machine_limits(), timeout_s=timeout_s)[0]


def run_feeds(
    load: Callable[[], Callable[[Tensors], Tensors]],
    feeds: Sequence[Mapping[str, NDArray[Any]]],
    *,
    limits: ChildLimits | None,
    timeout_s: float = RUN_TIMEOUT_S,
    least: int = 0,
    budget_s: float = math.inf,
) -> tuple[list[Tensors], float]:
    """Call the function that `load` returns with each of `feeds`, in a child process.

    Returns the results for as many as `budget_s` allows, `least` at least, and the seconds that they took, without
    those of `load`. Raises RunFailed.
    """
    with scratch_folder("run") as folder:
        for index, feed in enumerate(feeds):
            save_tensors(folder / f"feed{index}.npz", feed)
        call = partial(_run_feeds, load, folder, len(feeds), least=least, budget_s=budget_s)
        done, seconds = run_in_child(call, limits=limits, timeout_s=timeout_s)
        return [load_tensors(folder / f"result{index}.npz") for index in range(done)], seconds


def _run_feeds(
    load: Callable[[], Callable[[Tensors], Tensors]], folder: Path, count: int, *, least: int, budget_s: float
) -> tuple[int, float]:
    """Write the results; return their number, and the seconds of the runs."""
    stage: Literal["load", "run"] = "load"
    done, seconds = 0, 0.0
    try:
        run = load()
        stage = "run"
        while done < count and (done < least or seconds < budget_s):
            feed, started = load_tensors(folder / f"feed{done}.npz"), time.perf_counter()
            result = run(feed)
            seconds += time.perf_counter() - started
            save_tensors(folder / f"result{done}.npz", result)
            done += 1
    except Exception as error:  # the libraries have no common base for their errors
        raise RunFailed(stage, str(error) or type(error).__name__) from error
    return done, seconds


def run_in_child(call: Callable[[], T], *, limits: ChildLimits | None, timeout_s: float) -> T:
    """Run `call` in a child process and return its result.

    Raises RunFailed if `call` does, is killed or takes too long.
    """
    try:
        return call_in_child(call, limits=limits, timeout_s=timeout_s)
    except ChildTimedOut as error:
        raise RunFailed("run", error.reason) from error
    except ChildCrashed as error:
        if error.returncode >= 0:
            raise
        hint = " (out of memory?)" if -error.returncode == signal.SIGKILL else ""
        raise RunFailed("load", f"it crashed with {error.reason}{hint}") from error


def save_tensors(path: Path, tensors: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays for `load_tensors`.

    Names go into an array of their own: names in ONNX may hold characters that file names may not.
    """
    arrays = {f"t{index}": array for index, array in enumerate(tensors.values())}
    np.savez(path, names=np.array(list(tensors), dtype=str), **arrays)


def load_tensors(path: Path) -> Tensors:
    """Return the arrays that `save_tensors` wrote."""
    with np.load(path, allow_pickle=False) as arrays:
        return {str(name): arrays[f"t{index}"] for index, name in enumerate(arrays["names"])}


def session_of(path: Path, *, optimized: bool, threads: int | None) -> Callable[[Tensors], Tensors]:
    """Return what runs a model in this process; see `run_model`."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    # By default, ONNX Runtime pins threads to every processor of the machine, even to those that taskset or a
    # container's limits deny to this process.
    options.intra_op_num_threads = threads or len(os.sched_getaffinity(0))
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path.absolute(), options, providers=["CPUExecutionProvider"])
    return lambda feed: _outputs(session, feed)


def _outputs(session: Any, feed: Tensors) -> Tensors:
    names = [output.name for output in session.get_outputs()]
    outputs = zip(names, session.run(names, feed), strict=True)
    tensors = {name: array for name, array in outputs if isinstance(array, np.ndarray)}
    text = {name: array.astype(str) for name, array in tensors.items() if array.dtype == object}
    return {**tensors, **text}
