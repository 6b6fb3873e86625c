"""The study's memory: every finished trial in `trials.jsonl`, and the same trials in an Optuna study."""

from __future__ import annotations

import contextlib
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from search.convert import trial_from_record, trial_to_record
from search.files import append_line, whole_lines
from search.objective import COST, Objective
from search.records import TrialRecord
from search.space import Knobs, knobs_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    import optuna

    from search.space import SearchSpace
    from search.trial import Trial
    from search.why import WhyRecord

STUDY_NAME = "tritune"
TRIALS_FILE = "trials.jsonl"
STUDY_FILE = "study.db"
ASKS_BEFORE_GIVING_UP = 60


@dataclass(slots=True)
class Ledger:
    """Asks Optuna for points, and keeps what came of them.

    A finished trial is first appended to `trials.jsonl` (and on the disk) and then told to Optuna, so that a
    crash between the two loses nothing: opening the ledger again tells Optuna what it has missed.
    """

    space: SearchSpace
    path: Path
    study: optuna.Study
    objective: Objective = COST
    trials: list[Trial] = field(default_factory=list)
    resumed: bool = False
    _pace: int = 0
    _unfinished: set[tuple[int | str, ...]] = field(default_factory=set)

    def ask_for(self, points: Iterable[Knobs], *, wanted: Callable[[Knobs], bool]) -> optuna.trial.Trial | None:
        """An open Optuna trial at the first of `points` that is untried and `wanted`; None if there is none."""
        tried = self._tried()
        for knobs in points:
            if _key(knobs) not in tried and wanted(knobs):
                self.study.enqueue_trial(dict(knobs))
                return self._ask()
        return None

    def ask_sampler(self, *, wanted: Callable[[Knobs], bool]) -> optuna.trial.Trial | None:
        """An open Optuna trial at a point of the sampler's choice; None when it finds nothing untried."""
        tried = self._tried()
        for _ in range(ASKS_BEFORE_GIVING_UP):
            asked = self._ask()
            knobs: Knobs = dict(asked.params)
            if self.space.is_legal(knobs) and _key(knobs) not in tried and wanted(knobs):
                return asked
            # The sampler learns from the answer that it has been here, or that there is nothing here.
            self._tell_known(asked, tried.get(_key(knobs)))
        return None

    def record(self, asked: optuna.trial.Trial, trial: Trial) -> None:
        """Keep a finished trial, on the disk before anything else."""
        append_line(self.path, trial_to_record(trial).model_dump_json())
        self.trials.append(trial)
        self._tell(asked, trial)

    def abandon(self, asked: optuna.trial.Trial) -> None:
        """Close an asked trial that was not finished; it leaves no record and may be asked for again."""
        import optuna

        with contextlib.suppress(ValueError):
            self.study.tell(asked, state=optuna.trial.TrialState.FAIL)

    def next_number(self) -> int:
        """The number of the next trial: they count from 0 without gaps."""
        return len(self.trials)

    def best(self) -> Trial | None:
        """The complete trial that is best by the objective; None while there is none."""
        return self.objective.best(self.current)

    @property
    def pace(self) -> int:
        """How often the machine has changed its speed."""
        return max([self._pace, *(trial.pace for trial in self.trials)])

    @property
    def current(self) -> list[Trial]:
        """The trials since the machine last changed its speed: the others say nothing of what it does now."""
        pace = self.pace
        return [trial for trial in self.trials if trial.pace == pace]

    def begin_pace(self) -> None:
        """From now on everything is untried."""
        self._pace = self.pace + 1

    def as_of_now(self, why: WhyRecord, knobs: Knobs) -> WhyRecord:
        """A reason to try a point, with what is known here: the best so far, and whether it was begun before."""
        best = self.best()
        return why.model_copy(
            update={
                "best_trial": None if best is None else best.number,
                "resumed": self.resumed,
                "retaken": _key(knobs) in self._unfinished,
            }
        )

    def _tried(self) -> dict[tuple[int | str, ...], Trial]:
        return {_key(knobs_of(trial.config)): trial for trial in self.current}

    def _ask(self) -> optuna.trial.Trial:
        asked = self.study.ask()
        for name, values in self.space.axes().items():
            asked.suggest_categorical(name, values)
        return asked

    def _tell_known(self, asked: optuna.trial.Trial, known: Trial | None) -> None:
        """Close an asked trial that is not run: a repetition with the value it had, an illegal one as pruned."""
        import optuna

        asked.set_user_attr("skipped", "already tried" if known else "not a legal combination")
        value = None if known is None else self._value(known)
        if value is not None:
            self.study.tell(asked, value)
        else:
            self.study.tell(asked, state=optuna.trial.TrialState.PRUNED)

    def _tell(self, asked: optuna.trial.Trial, trial: Trial) -> None:
        import optuna

        for name, value in _attributes(trial).items():
            asked.set_user_attr(name, value)
        value = self._value(trial)
        if trial.state in ("complete", "infeasible") and value is not None:
            self.study.tell(asked, value)
        elif trial.state in ("pruned", "infeasible"):
            if value is not None:
                asked.report(value, step=0)
            self.study.tell(asked, state=optuna.trial.TrialState.PRUNED)
        else:
            self.study.tell(asked, state=optuna.trial.TrialState.FAIL)

    def _value(self, trial: Trial) -> float | None:
        """What Optuna is told; of rates also those that cannot win. None: nothing comparable was measured."""
        if self.objective.name == "cost":
            return None if trial.state == "failed" else trial.rate_at_limit_per_s or 0.0
        return self.objective.worth(trial)


def open_ledger(
    space: SearchSpace, directory: Path, *, storage: str | None, seed: int, objective: Objective = COST
) -> Ledger:
    """The ledger in `directory`, with the trials that an earlier run finished there.

    `storage` is any Optuna storage URL; None means an SQLite file in `directory`. Trials that Optuna does not
    know are told to it, and trials that it believes to be running are closed: their process is gone.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        # "Experimental" here is optuna's word for "may change", which our version bounds answer.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, n_startup_trials=8)
        study = optuna.create_study(
            study_name=STUDY_NAME if storage is None else f"{STUDY_NAME}-{directory.name}",
            storage=storage or f"sqlite:///{directory / STUDY_FILE}",
            sampler=sampler,
            direction="maximize",
            load_if_exists=True,
        )
        study.set_metric_names([objective.metric])
    ledger = Ledger(space=space, path=directory / TRIALS_FILE, study=study, objective=objective)
    ledger.trials.extend(_finished_trials(space, ledger.path))
    _reconcile(ledger)
    return ledger


def _finished_trials(space: SearchSpace, path: Path) -> Iterable[Trial]:
    for line in whole_lines(path):
        yield trial_from_record(TrialRecord.model_validate_json(line), space.engines)


def _reconcile(ledger: Ledger) -> None:
    import optuna

    known = set()
    for frozen in ledger.study.get_trials(deepcopy=False):
        if not frozen.state.is_finished():
            with contextlib.suppress(ValueError):
                ledger.study.tell(frozen.number, state=optuna.trial.TrialState.FAIL)
        if "trial" in frozen.user_attrs:
            known.add(frozen.user_attrs["trial"])
        elif "skipped" not in frozen.user_attrs:
            ledger._unfinished.add(_key(frozen.params))  # noqa: SLF001
    ledger.resumed = bool(ledger.trials or ledger._unfinished)  # noqa: SLF001
    for trial in ledger.trials:
        if trial.number not in known:
            ledger.study.enqueue_trial(dict(knobs_of(trial.config)))
            ledger._tell(ledger._ask(), trial)  # noqa: SLF001


def _attributes(trial: Trial) -> dict[str, Any]:
    predicted = None if trial.why is None else trial.why.prediction
    attributes = {
        "trial": trial.number,
        "state": trial.state,
        "reason": trial.reason,
        "rate_low_per_s": trial.rate_low_per_s,
        "rate_high_per_s": trial.rate_high_per_s,
        "loading_s": round(trial.loading_s, 3),
        "load_s": round(trial.load_s, 3),
        "why": None if trial.why is None else trial.why.cause,
        "predicted_per_s": None if predicted is None else predicted.rate_per_s,
        "slowdown": None if trial.replay is None else trial.replay.slowdown,
    }
    return {name: value for name, value in attributes.items() if value is not None}


def _key(knobs: Knobs) -> tuple[int | str, ...]:
    return tuple(knobs[name] for name in sorted(knobs))
