"""Carry out the calls of `tritune`: options in, records out."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from loadgen.command.app import as_user_error
from loadgen.errors import EnvironmentFailed, UserError
from loadgen.options.declare import made_of, option_fields
from loadgen.options.sources import given_in_call

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


def optimized(arguments: Mapping[str, object], on_event: Callable[[Any], object] | None) -> RecommendationRecord:
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
    values, origins = given_in_call("optimize", declared, arguments)
    with _converted("optimize"), _environment_kept():
        call = made_of(CallOptions, values, str)
        config, notes = config_of_call(call, values, origins)
        found, _ = session.carry_out(
            config,
            notes,
            optimize,
            display=nullcontext(show),
            heeding=_finish_never,
            resume=call.resume is not None,
            baseline=call.baseline,
            accept_provisional=call.accept_provisional,
        )
    return found


@contextmanager
def _environment_kept() -> Iterator[None]:
    """Undo changes of the environment after the block: a run hides addresses and GPUs from its own processes."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def load_tested(arguments: Mapping[str, object]) -> LoadTestRecord:
    """See `tritune.loadtest`."""
    from loadgen.command.arguments import order_from_options
    from loadgen.command.run import carry_out
    from loadgen.console import SafeConsole
    from loadgen.options.load_test import LoadTestOptions
    from loadgen.spec.load_test import Note

    declared = {name: one for name, one in option_fields(LoadTestOptions).items() if name not in _NOT_LOADTEST}
    values, _ = given_in_call("loadtest", declared, arguments)
    with _converted("loadtest"):
        assumed: list[str] = []
        options = made_of(LoadTestOptions, values, assumed.append)
        order, notes = order_from_options(options, os.environ)
        record, problems = carry_out(
            order,
            [*(Note(text=text) for text in assumed), *notes],
            console=SafeConsole(file=io.StringIO(), quiet=True),
            heeding=_finish_never,
            web_port=options.web_port if options.web else None,
        )
        if problems:
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

    folder = Path(directory)
    trials = read_trials(folder)
    found = recommendation_if_any(folder)
    if found is None and not trials:
        found = read_recommendation(folder)  # raises what is wrong with it
    return Run(directory=folder, recommendation=found, trials=trials)
