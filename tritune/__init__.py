"""tritune from Python: find the cheapest Triton configuration, judge an endpoint, read a run.

No signal is handled and no library is patched, so that all of it works in a thread, in a notebook and within a
running event loop, which a call blocks until it returns. A process that is forked during a call may hang, as with
any threads: start yours by multiprocessing's "spawn". Progress goes to stderr in a notebook and at a prompt; a
script prints nothing unless it asks for it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from os import PathLike
from typing import TYPE_CHECKING, Any, Unpack

from tritune.commands import ForeignPackage, check_packages
from tritune.options import LoadtestOptions, OptimizeOptions

if TYPE_CHECKING:
    from loadgen.errors import UserError as Error
    from tritune.records import Recommendation, Result, Run

__all__ = [
    "Error",
    "ForeignPackage",
    "LoadtestOptions",
    "OptimizeOptions",
    "Recommendation",
    "Result",
    "Run",
    "loadtest",
    "open_run",
    "optimize",
]

_ELSEWHERE = {
    "Error": ("loadgen.errors", "UserError"),
    "Recommendation": ("tritune.records", "Recommendation"),
    "Result": ("tritune.records", "Result"),
    "Run": ("tritune.records", "Run"),
}
"""Names whose modules are imported once they are used: `import tritune` takes no time."""


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("tritune")
    if name not in _ELSEWHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    check_packages()
    module, there = _ELSEWHERE[name]
    return getattr(import_module(module), there)


def optimize(
    model: str | PathLike[str] | None = None,
    p99: str | float | None = None,
    *,
    on_event: Callable[[Any], object] | None = None,
    stop: Callable[[], bool] | None = None,
    progress: bool | None = None,
    **options: Unpack[OptimizeOptions],
) -> Recommendation:
    """Return the cheapest Triton configuration of a model that is certified to meet a p99 latency limit.

    `p99` is a duration such as "50ms"; a number is in ms. `options` are those of the command in Python's spelling,
    such as `time_budget="5m"` or `precisions=["fp32", "fp16"]`; what is printed and how, `config`, `dry_run` and
    environment variables of options are the command's alone. Files go to `output`, runs/MODEL-TIME unless given.

    `on_event` gets the events of `search.trials.events` as they happen, some from other threads. What it raises is
    logged, and does not end the run. `stop` is asked often while the search runs: once it returns True, the run
    finishes with the best so far, as the command does after Ctrl-C. `progress`: show it on stderr; None: in a
    notebook and at a prompt.

    Raises Error, with `what`, `fix`, `status` and `exit_code`: as the command prints and ends. Its `result` is the
    `Run` in the directory, or None if it had not begun. One call at a time goes on in a process.
    """
    check_packages()
    from tritune.calls import optimized

    return optimized({"model": model, "p99": p99, **options}, on_event, stop, progress)


def loadtest(
    url: str,
    *,
    model: str | None = None,
    rate: float | None = None,
    p99: str | float | None = None,
    progress: bool | None = None,
    **options: Unpack[LoadtestOptions],
) -> Result:
    """Load a model on a server, and return the result; its `outcome` and `exit_code` say whether limits are met.

    `rate` is in requests per second, `p99` a duration such as "50ms"; a number is in ms. `options` are those of
    the command in Python's spelling, such as `duration="10s"`, `find_max=True`. A load that several machines send
    (`master`, `worker`) is the command's alone. `progress` as for `optimize`.

    Raises Error, with `what`, `fix`, `status` and `exit_code`, if nothing could be measured or a file not written;
    then its `result` is what was measured.
    """
    check_packages()
    from tritune.calls import load_tested

    return load_tested({"url": url, "model": model, "rate": rate, "p99": p99, **options}, progress)


def open_run(directory: str | PathLike[str]) -> Run:
    """Return what a run of `optimize` has left in its directory. Raises Error if it is none, or damaged."""
    check_packages()
    from tritune.records import opened

    return opened(directory)


def _name_options(call: Callable[..., object], options: type) -> None:
    """Add the options to the signature, from which notebooks and prompts complete them."""
    signature = inspect.signature(call)
    *others, rest = signature.parameters.values()
    named = (
        rest.replace(name=name, kind=rest.KEYWORD_ONLY, default=None, annotation=kind.__forward_arg__)
        for name, kind in options.__annotations__.items()
    )
    call.__signature__ = signature.replace(parameters=[*others, *named])  # type: ignore[attr-defined]


_name_options(optimize, OptimizeOptions)
_name_options(loadtest, LoadtestOptions)
