"""Models run by ONNX Runtime in a child process, so that a crash, a leak or a flood of warnings stays there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from loadgen.scratch import scratch_folder
from optimizer.child_limits import begin_as_child, end_with_parent, environment_of_child, machine_limits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

Tensors = dict[str, "NDArray[np.generic]"]
"""Arrays by the name of an input or output."""

TIMEOUT_S = 300.0

CHILD = (sys.executable, "-P", "-m", "optimizer.onnx_run")
"""-P: a folder in the current directory that is named like one of our packages must not come first."""


class RunFailed(Exception):
    """The model could not be loaded or run; `stage` says which, `reason` is ONNX Runtime's message."""

    def __init__(self, stage: Literal["load", "run"], reason: str) -> None:
        super().__init__(f"{stage}: {reason}")
        self.stage = stage
        self.reason = reason


def check_loads(path: Path, *, timeout_s: float = TIMEOUT_S) -> None:
    """Build a CPU session for the model and drop it. Raises RunFailed."""
    run_model(path, [], timeout_s=timeout_s)


def run_model(
    path: Path,
    feeds: Sequence[Mapping[str, NDArray[Any]]],
    *,
    thinned_to: int | None = None,
    optimized: bool = True,
    timeout_s: float = TIMEOUT_S,
    child: Sequence[str] = CHILD,
) -> list[Tensors]:
    """All outputs of the model for each of `feeds`, in order, computed on the CPU. Raises RunFailed.

    With `thinned_to`, outputs come as (rows, at most that many elements), evenly picked from each row: enough to
    compare what would not fit into memory. Outputs that are not tensors are left out. Arrays travel as .npz files
    without pickles. Not `optimized`, ONNX Runtime runs the graph node by node as it stands.
    """
    request = {"model": str(path.absolute()), "thinned_to": thinned_to, "optimized": optimized}
    return run_in_child(child, request, feeds, timeout_s=timeout_s)


def run_in_child(
    child: Sequence[str],
    request: Mapping[str, object],
    feeds: Sequence[Mapping[str, NDArray[Any]]],
    *,
    timeout_s: float = TIMEOUT_S,
) -> list[Tensors]:
    """What a child that calls `answer` gives for each of `feeds`. Raises RunFailed."""
    with scratch_folder("run") as folder:
        for index, feed in enumerate(feeds):
            save_tensors(Path(folder, f"feed{index}.npz"), feed)
        Path(folder, "request.json").write_text(json.dumps({**request, "runs": len(feeds)}))
        run_child([*child, str(folder)], timeout_s)
        answer = json.loads(Path(folder, "answer.json").read_text())
        if answer["reason"] is not None:
            raise RunFailed(answer["stage"], answer["reason"])
        return [load_tensors(Path(folder, f"result{index}.npz")) for index in range(len(feeds))]


def run_child(command: list[str], timeout_s: float) -> None:
    """Run one of our modules as a program. Raises RunFailed if it is killed or takes too long."""
    try:  # in a session of its own: Ctrl-C is for the parent to handle, and would look like a crash here
        ended = subprocess.run(
            command,
            env=environment_of_child(),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired as error:
        raise RunFailed("run", f"no result within {timeout_s:g} s") from error
    if ended.returncode < 0:
        name = signal.Signals(-ended.returncode).name
        hint = " (out of memory?)" if name == "SIGKILL" else ""
        raise RunFailed("load", f"it crashed with {name}{hint}")
    if ended.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {ended.returncode}:\n{ended.stderr[-2000:]}")


def save_tensors(path: Path, tensors: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays for `load_tensors`.

    Names go into an array of their own: those of ONNX may hold characters that no file name may.
    """
    import numpy as np

    arrays = {f"t{index}": array for index, array in enumerate(tensors.values())}
    np.savez(path, names=np.array(list(tensors), dtype=str), **arrays)


def load_tensors(path: Path) -> Tensors:
    """What `save_tensors` wrote."""
    import numpy as np

    with np.load(path, allow_pickle=False) as arrays:
        return {str(name): arrays[f"t{index}"] for index, name in enumerate(arrays["names"])}


def answer(folder: Path, load: Callable[[Any], Callable[[Tensors], Tensors]]) -> None:
    """The child's side of `run_in_child`: `load` makes of the request what runs one feed after the other."""
    end_with_parent()
    request = json.loads((folder / "request.json").read_text())
    stage, reason = "load", None
    try:
        run = load(request)
        stage = "run"
        for index in range(request["runs"]):
            save_tensors(folder / f"result{index}.npz", run(load_tensors(folder / f"feed{index}.npz")))
    except Exception as error:  # the libraries have no common base for their errors
        reason = str(error) or type(error).__name__
    (folder / "answer.json").write_text(json.dumps({"stage": stage, "reason": reason}))


def _session(request: Any) -> Callable[[Tensors], Tensors]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    # Left to itself it takes every processor of the machine and ties its threads to them, those too from which
    # taskset or a container's limits keep this process.
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    if not request["optimized"]:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(request["model"], options, providers=["CPUExecutionProvider"])
    return lambda feed: _outputs(session, feed, request["thinned_to"])


def _outputs(session: Any, feed: Tensors, thinned_to: int | None) -> Tensors:
    import numpy as np

    names = [output.name for output in session.get_outputs()]
    outputs = zip(names, session.run(names, feed), strict=True)
    tensors = {name: array for name, array in outputs if isinstance(array, np.ndarray)}
    text = {name: array.astype(str) for name, array in tensors.items() if array.dtype == object}
    tensors = {**tensors, **text}
    if thinned_to is None:
        return tensors
    return {name: thinned(array, thinned_to) for name, array in tensors.items()}


def thinned(array: NDArray[Any], most: int) -> NDArray[Any]:
    """(rows, at most `most` elements) of `array`, whose first axis are the rows."""
    rows = array.reshape(array.shape[0] if array.ndim else 1, -1)
    return rows[:, :: max(1, -(-rows.shape[1] // most))]


if __name__ == "__main__":
    begin_as_child(machine_limits())
    answer(Path(sys.argv[1]), _session)
