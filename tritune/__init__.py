"""tritune from Python: find the cheapest Triton configuration, judge an endpoint, read a run.

Nothing is printed, no signal is handled and no library is patched, so that all of it works in a thread, in a
notebook and within a running event loop, which a call blocks until it returns.
"""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from typing import TYPE_CHECKING, Any

from tritune.commands import ForeignPackage, check_packages

if TYPE_CHECKING:
    from loadgen.errors import UserError as Error
    from loadgen.records.record import LoadTestRecord as Result
    from search.records.recommendation import RecommendationRecord as Recommendation
    from tritune.calls import Run

__all__ = ["Error", "ForeignPackage", "Recommendation", "Result", "Run", "loadtest", "open_run", "optimize"]

_ELSEWHERE = {
    "Error": ("loadgen.errors", "UserError"),
    "Recommendation": ("search.records.recommendation", "RecommendationRecord"),
    "Result": ("loadgen.records.record", "LoadTestRecord"),
    "Run": ("tritune.calls", "Run"),
}
"""Names whose modules are imported once they are used: `import tritune` takes no time."""


def __getattr__(name: str) -> Any:
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
    **options: Any,
) -> Recommendation:
    """Return the cheapest Triton configuration of a model that is certified to meet a p99 latency limit.

    `p99` is a duration such as "50ms"; a number is in ms. `options` are those of the command in Python's spelling,
    such as `time_budget="5m"` or `precisions=["fp32", "fp16"]`; `json`, `config`, `dry_run` and `debug` are the
    command's alone, as are environment variables of options. Files go to `output`, runs/MODEL-TIME unless given.

    `on_event` gets the events of `search.trials.events` as they happen, some from other threads. What it raises is
    logged, and does not end the run. `stop` is asked often while the search runs: once it returns True, the run
    finishes with the best so far, as the command does after Ctrl-C.

    Raises Error, with `what`, `fix`, `status` and `exit_code`: as the command prints and ends. One call at a time
    goes on in a process.
    """
    check_packages()
    from tritune.calls import optimized

    return optimized({"model": model, "p99": p99, **options}, on_event, stop)


def loadtest(
    url: str,
    *,
    model: str | None = None,
    rate: float | None = None,
    p99: str | float | None = None,
    **options: Any,
) -> Result:
    """Load a model on a server, and return the result; its `outcome` and `exit_code` say whether limits are met.

    `rate` is in requests per second, `p99` a duration such as "50ms"; a number is in ms. `options` are those of
    the command in Python's spelling, such as `duration="10s"`, `find_max=True`. A load that several machines send
    (`master`, `worker`) is the command's alone.

    Raises Error, with `what`, `fix`, `status` and `exit_code`, if nothing could be measured or a file not written;
    then its `result` is what was measured.
    """
    check_packages()
    from tritune.calls import load_tested

    return load_tested({"url": url, "model": model, "rate": rate, "p99": p99, **options})


def open_run(directory: str | PathLike[str]) -> Run:
    """Return what a run of `optimize` has left in its directory. Raises Error if it is none, or damaged."""
    check_packages()
    from tritune.calls import opened

    return opened(directory)
