"""What the calls of `tritune` return: records that a notebook and a prompt show in short."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from loadgen.errors import BadInput, EnvironmentFailed
from loadgen.exit_codes import Status
from loadgen.printable import printable
from loadgen.records.record import LoadTestRecord
from search.records.recommendation import AnyRecommendation, RecommendationRecord
from tritune.messages import converted, in_python

_state = random.getstate()
import rich.style  # noqa: E402, F401 - it draws a number when imported, and callers may have set a seed

random.setstate(_state)

if TYPE_CHECKING:
    import pandas as pd

    from search.records.trial import LoadRunRecord, TrialRecord


class Result(LoadTestRecord):
    """The record of a load test; a notebook shows its limits, or without any its latencies."""

    def __repr__(self) -> str:
        """Return the outcome with its first reason, on one line."""
        return f"<Result {self.outcome}: {' '.join(self.reasons[:1])}>"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        from loadgen.records.formats import load_in_words
        from loadgen.reports import tables
        from loadgen.reports.kit import card

        target, measured = self.target, self.measurement
        table = tables.checks(self) or (None if measured is None else tables.latency(measured))
        problems = () if measured is None else measured.problems
        under = f"{target.model_name} at {target.url}: {load_in_words(self.load)}"
        return card(self.outcome.upper(), (*self.reasons, under, *problems, *self.notes), table)


class Recommendation(RecommendationRecord):
    """The recommendation of a run in `directory`; a notebook shows it next to Triton's default."""

    _directory: Path = Path()

    @property
    def directory(self) -> Path:
        """The run's directory, with its report, its model repository and its bundle."""
        return self._directory

    def report(self, output: str | PathLike[str] | None = None) -> Path:
        """Write the run's HTML report and return its path: see `Run.report`."""
        return opened(self._directory).report(output)

    @property
    def verdict(self) -> str:
        """The status and what is recommended, in a few words."""
        from optimizer.reports.text import headline

        return f"{self.status}: {headline(self)}"

    def __repr__(self) -> str:
        """Return the status, the rate and the configuration, on one line."""
        from search.labels import trial_text

        return f"<Recommendation {self.verdict}; {trial_text(self.winner)}>"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        from loadgen.reports.kit import card
        from optimizer.reports import tables, text

        why = [] if self.status == "certified" else [self.status_reason, self.advice]
        return card(self.verdict, (*why, *text.lead(self), *text.caveats(self)), tables.comparison(self))


def recommended(found: RecommendationRecord, directory: Path) -> Recommendation:
    """Return the recommendation of the run in a directory."""
    recommendation = Recommendation(**dict(found))
    recommendation._directory = directory.absolute()  # noqa: SLF001
    return recommendation


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a run has left in its directory. `recommendation` None: it recommends nothing, or is not finished.

    `outcome` is how it ended, also without a recommendation; None if it has not.
    """

    directory: Path
    recommendation: Recommendation | None
    trials: tuple[TrialRecord, ...]
    outcome: AnyRecommendation | None = None

    @property
    def status(self) -> Status | None:
        """How it ended, such as `certified` or `violated`; None if it has not."""
        return None if self.outcome is None else self.outcome.status

    @property
    def reason(self) -> str:
        """The reason for the status, in a sentence."""
        return "It has not ended." if self.outcome is None else in_python(self.outcome.status_reason)

    @property
    def advice(self) -> str:
        """What to do about it; empty if there is nothing to do."""
        go_on = "Go on with tritune.optimize(resume=...)."
        return go_on if self.outcome is None else in_python(self.outcome.advice)

    @property
    def load_runs(self) -> tuple[LoadRunRecord, ...]:
        """The load runs of all trials, in the order of the trials."""
        return tuple(run for trial in self.trials for run in trial.load_runs)

    @property
    def verdict(self) -> str:
        """The status and what is recommended, in a few words."""
        if self.recommendation is not None:
            return self.recommendation.verdict
        ended = len(self.trials)
        return f"{self.status or 'not finished'}, {ended} trial{'' if ended == 1 else 's'}"

    def __repr__(self) -> str:
        """Return the directory and the outcome, on one line."""
        return f"<Run {str(self.directory)!r}: {self.verdict}>"

    def _repr_html_(self) -> str:
        from loadgen.reports.kit import card

        if self.recommendation is not None:
            return self.recommendation._repr_html_()
        return card(self.verdict, (self.reason, self.advice, str(self.directory)), None)

    def report(self, output: str | PathLike[str] | None = None) -> Path:
        """Write the HTML report of the run to `output`, or to its directory, and return its path.

        `webbrowser.open(run.report().as_uri())` shows it. Raises Error if it cannot be written.
        """
        from optimizer.reports.report import write_report

        with converted("optimize"):
            return write_report(
                self.directory.absolute(), output=None if output is None else Path(output).absolute()
            )

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
    from search.records.run_files import RECOMMENDATION_FILE, read_outcome, read_trials

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
    with converted("optimize"):
        trials = read_trials(folder)
        ended = (folder / RECOMMENDATION_FILE).is_file() or not trials
        outcome = read_outcome(folder) if ended else None  # raises what is wrong with it
        found = recommended(outcome, folder) if isinstance(outcome, RecommendationRecord) else None
    return Run(directory=folder, recommendation=found, trials=trials, outcome=found or outcome)
