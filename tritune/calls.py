"""Carry out the calls of `tritune`: options in, records out."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from loadgen.command.app import as_user_error
from loadgen.errors import BadInput, EnvironmentFailed, UserError
from loadgen.options.declare import made_of, option_fields
from loadgen.options.sources import given_in_call, take_variables
from loadgen.printable import printable

if TYPE_CHECKING:
    import pandas as pd

    from loadgen.records.record import LoadTestRecord
    from search.records.recommendation import RecommendationRecord
    from search.records.trial import LoadRunRecord, TrialRecord

_OF_COMMANDS = {"json", "config", "debug", "version"}
_NOT_OPTIMIZE = {*_OF_COMMANDS, "dry_run"}
_NOT_LOADTEST = {*_OF_COMMANDS, "master", "expect_workers", "worker", "port", "bind"}
"""Options that calls do not take. Several machines need Locust in the process, which patches it."""


@contextmanager
def _converted(command: str) -> Iterator[None]:
    """Turn every error of the block into one of two lines."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise as_user_error(error, command) from error


def _finish_never(_: object) -> nullcontext[Callable[[], bool]]:
    """Watch for no signal: Ctrl-C raises KeyboardInterrupt in the main thread, as in any Python."""
    return nullcontext(lambda: False)


_ONE_RUN = threading.Lock()
"""A run restricts the GPUs of its process, and has its log."""


def optimized(
    arguments: Mapping[str, object],
    on_event: Callable[[Any], object] | None,
    stop: Callable[[], bool] | None,
) -> RecommendationRecord:
    """See `tritune.optimize`."""
    from optimizer.call_options import OPTIONS, CallOptions
    from optimizer.command import session
    from optimizer.command.arguments import config_of_call
    from optimizer.run.pipeline import optimize
    from search.trials import events

    def show(event: events.Event) -> None:
        if on_event is not None:
            on_event(event)

    declared = {name: one for name, one in OPTIONS.items() if name not in _NOT_OPTIMIZE}
    with _converted("optimize"), _only_run():
        values, origins = given_in_call("optimize", declared, arguments)
        call = made_of(CallOptions, values, str)
        config, notes = config_of_call(call, values, origins)
        found, _ = session.carry_out(
            config,
            notes,
            call,
            optimize,
            display=nullcontext(show),
            heeding=_finish_never if stop is None else lambda _: nullcontext(stop),
        )
    return found


@contextmanager
def _only_run() -> Iterator[None]:
    """Hide the commands' variables, which may hold secrets, from a run's processes; undo what a run changes.

    Raises BadInput if another run goes on in this process.
    """
    from optimizer.machine.hardware import VISIBLE

    if not _ONE_RUN.acquire(blocking=False):
        raise BadInput(
            "Another call of tritune.optimize goes on in this process.",
            "Wait for it, or make this call in a process of its own.",
        )
    before = {name: text for name, text in os.environ.items() if name == VISIBLE or name.startswith("TRITUNE_")}
    try:
        take_variables(os.environ, "optimize")
        yield
    finally:
        os.environ.pop(VISIBLE, None)
        os.environ.update(before)
        _ONE_RUN.release()


def load_tested(arguments: Mapping[str, object]) -> LoadTestRecord:
    """See `tritune.loadtest`."""
    from loadgen.command.arguments import order_from_options
    from loadgen.command.run import carry_out
    from loadgen.console import SafeConsole
    from loadgen.options.load_test import LoadTestOptions
    from loadgen.spec.load_test import Note

    declared = {name: one for name, one in option_fields(LoadTestOptions).items() if name not in _NOT_LOADTEST}
    with _converted("loadtest"):
        values, _ = given_in_call("loadtest", declared, arguments)
        assumed: list[str] = []
        options = made_of(LoadTestOptions, values, assumed.append)
        order, notes = order_from_options(options, os.environ)
        record, problems = carry_out(
            order,
            [*(Note(text=text) for text in assumed), *notes],
            # With FORCE_COLOR it would be a terminal, and its live display would replace sys.stdout.
            console=SafeConsole(file=io.StringIO(), quiet=True, force_terminal=False),
            heeding=_finish_never,
            web_port=options.web_port if options.web else None,
        )
        if problems:
            problems[0].result = record
            raise problems[0]
    return record


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a run has left in its directory. `recommendation` None: it recommends nothing, or is not finished."""

    directory: Path
    recommendation: RecommendationRecord | None
    trials: tuple[TrialRecord, ...]

    @property
    def load_runs(self) -> tuple[LoadRunRecord, ...]:
        """The load runs of all trials, in the order of the trials."""
        return tuple(run for trial in self.trials for run in trial.load_runs)

    def to_pandas(self, of: Literal["trials", "load_runs"] = "trials") -> pd.DataFrame:
        """Return a data frame with a row per trial, or per load run with the number of its `trial`.

        Fields of parts have names such as `measurement.latency_p99_ms`. Raises Error if pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise EnvironmentFailed("pandas is not installed here.", "Install it: pip install pandas") from error
        if of == "trials":
            rows = [trial.model_dump(mode="json", exclude={"load_runs"}) for trial in self.trials]
        else:
            rows = [
                {"trial": trial.number, **run.model_dump(mode="json")}
                for trial in self.trials
                for run in trial.load_runs
            ]
        return pd.json_normalize(rows)


def opened(directory: str | PathLike[str]) -> Run:
    """See `tritune.open_run`."""
    from search.records.run_files import read_recommendation, read_trials, recommendation_if_any

    try:
        folder = Path(directory)
        with suppress(FileNotFoundError):
            folder.stat()
    except (OSError, TypeError, ValueError) as error:  # a name too long, a NUL, no path at all
        reason = getattr(error, "strerror", None) or error
        raise BadInput(
            f"{printable(repr(directory), most=200)} is not the directory of a run: {reason}.",
            "Give the directory of a run, such as runs/MODEL-TIME.",
        ) from error
    with _converted("optimize"):
        trials = read_trials(folder)
        found = recommendation_if_any(folder)
        if found is None and not trials:
            found = read_recommendation(folder)  # raises what is wrong with it
    return Run(directory=folder, recommendation=found, trials=trials)
