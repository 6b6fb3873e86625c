"""The trial store: every finished trial in `trials.jsonl` and in an Optuna study."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.errors import BadInput
from loadgen.files import write_atomically
from search.records.run_files import TRIALS_FILE, append_line, read_records
from search.records.trial import AnswersRecord, TrialRecord, WhyRecord
from search.space import Key, Knobs, SearchSpace, at_least, key_of, knobs_of, without_delays
from search.trials.events import OnEvent, ignore
from search.trials.objective import COST, Objective
from search.trials.trial import Trial, trial_from_record

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

    from search.study.patient_storage import PatientStorage


STUDY_NAME = "tritune"

STUDY_FILE = "study.db"

AXES, BEGUN = "axes", "begun"
"""User attributes of the study: the axes of its search space, and the point that the search asked for last."""

SHOWN = {
    *("state", "reason", "rate_low_per_s", "rate_high_per_s", "loading_s", "load_s"),
    *("why", "replay", "hardware", "worker"),
}
"""What Optuna's dashboard shows with a trial's value."""

ASKS_BEFORE_GIVING_UP = 60


@dataclass(slots=True)
class TrialStore:
    """Asks Optuna for points, and stores the finished trials.

    A finished trial is first appended to `trials.jsonl`, flushed to the disk, and then added to the study, so that
    a crash between the two loses nothing: opening the store again adds the missing trials to the study.
    """

    space: SearchSpace
    path: Path
    study: optuna.Study
    storage: PatientStorage
    objective: Objective = COST
    hardware: str | None = None  # of trials without a `hardware` of their own
    trials: list[Trial] = field(default_factory=list)
    away: set[Key] = field(default_factory=set)  # points that workers have been asked to measure
    begun: Key | None = None  # the point that an earlier process asked for last
    resumed: bool = False
    _asked: Key | None = None

    def untried(self, knobs: Mapping[str, int | str]) -> bool:
        """True if a point has not been measured, and is not being measured."""
        key = key_of(knobs)
        return key not in self.away and key != self._asked and key not in self.tried()

    def ask_for(self, points: Iterable[Knobs], *, wanted: Callable[[Knobs], bool]) -> Knobs | None:
        """Return the first of `points` that is untried and `wanted`, to be measured now; None if there is none."""
        for knobs in points:
            if self.untried(knobs) and wanted(knobs):
                return self._begin(knobs)
        return None

    def ask_sampler(self, *, wanted: Callable[[Knobs], bool]) -> Knobs | None:
        """Return a point that the sampler chooses, to be measured now; None if it finds no untried one."""
        import optuna

        states, tried = optuna.trial.TrialState, self.tried()
        for _ in range(ASKS_BEFORE_GIVING_UP):
            drawn = self.study.ask(distributions_of(self.space.axes(), self.space))
            knobs: Knobs = dict(drawn.params)
            if self.space.has(knobs) and self.untried(knobs) and wanted(knobs):
                self.study.tell(drawn, state=states.FAIL)  # its result is added as a trial
                return self._begin(knobs)
            # The sampler gets the known value of this point, or the result that it is not legal.
            known = tried.get(key_of(knobs))
            drawn.set_user_attr("skipped", "already tried" if known else "not a legal combination")
            value = None if known is None else self.objective.optuna_value(known)
            self.study.tell(drawn, value, state=states.PRUNED if value is None else None)
        return None

    def record(self, trial: Trial) -> Trial:
        """Store a finished trial, on the disk first; return it with its number."""
        kept = trial.changed(number=self.next_number(), hardware=trial.hardware or self.hardware)
        missing = [] if self.path.exists() else self.trials  # the file was removed: write all trials again
        for one in (*missing, kept):
            append_line(self.path, one.model_dump_json())
        self.trials.append(kept)
        self.study.add_trial(frozen_trial(kept, self.space, self.objective))
        return kept

    def take_back(self, number: int, answers: AnswersRecord, passed: Collection[int]) -> set[int]:
        """Fail a finished trial whose batches mix rows, with those that form such batches; returns their numbers.

        They have the same engine and no smaller batches. The trials `passed`, whose own answers were right, stay.
        """
        mixing = next(trial for trial in self.trials if trial.number == number)
        reason = f"trial {number}: {answers.text}"

        def failed(trial: Trial) -> Trial:
            same = forms_batches_of(mixing, knobs_of(trial.served))
            if trial.number in passed or not same:
                return trial
            rates = dict.fromkeys(("rate_at_limit_per_s", "rate_low_per_s", "rate_high_per_s", "lone_latency_ms"))
            return trial.changed(state="failed", reason=reason, answers=answers, **rates)

        return self._replace(failed)

    def raise_capacity(self, number: int, rate_per_s: float) -> None:
        """Raise the estimated capacity of a finished trial to a rate that it met in certification."""
        self._replace(lambda trial: trial.meeting(rate_per_s) if trial.number == number else trial)

    def _replace(self, changed: Callable[[Trial], Trial]) -> set[int]:
        """Replace trials by what a function makes of them, also in the file; return the numbers of the changed."""
        before, self.trials[:] = self.trials.copy(), map(changed, self.trials)
        other = {one.number for one, now in zip(before, self.trials, strict=True) if one is not now}
        if other:
            write_atomically(self.path, "".join(f"{trial.model_dump_json()}\n" for trial in self.trials))
        return other

    def abandon(self) -> None:
        """Forget the asked point; without a record it may be asked for again."""
        self._asked = None

    def next_number(self) -> int:
        """Return the number of the next trial; numbers count from 0 without gaps."""
        return len(self.trials)

    def best(self) -> Trial | None:
        """Return the complete trial that is best by the objective; None if there is none."""
        return next(iter(self.best_first()), None)

    def best_first(self) -> list[Trial]:
        """Return the complete trials that may be recommended, the best first."""
        apart = self.space.only_compared
        return self.objective.best_first([trial for trial in self.trials if trial.served not in apart])

    def as_of_now(self, why: WhyRecord, knobs: Knobs) -> WhyRecord:
        """Return the reason of a trial with the best so far, and a flag that the point was begun before."""
        best = self.best()
        return why.changed(
            best_trial=None if best is None else best.number,
            resumed=self.resumed,
            retaken=key_of(knobs) == self.begun,
        )

    def tried(self) -> dict[Key, Trial]:
        """Return the finished trials by their points."""
        return {key_of(knobs_of(trial.served)): trial for trial in self.trials}

    def _begin(self, knobs: Knobs) -> Knobs:
        """Remember the point that is measured now, also in the study, for the run that goes on with this one."""
        self._asked = key_of(knobs)
        self.study.set_user_attr(BEGUN, knobs)
        return knobs


def forms_batches_of(mixing: Trial, knobs: Mapping[str, int | str]) -> bool:
    """True if the configuration at a point has the engine of a trial and forms all batches that it does."""
    theirs = knobs_of(mixing.served)
    return knobs["engine"] == theirs["engine"] and at_least(knobs, theirs, "max_batch_size")


def open_store(
    space: SearchSpace,
    directory: Path,
    *,
    storage: str | None,
    seed: int,
    study: str | None = None,
    hardware: str | None = None,
    objective: Objective = COST,
    on_event: OnEvent = ignore,
) -> TrialStore:
    """Open the trial store of `directory`, with the trials that an earlier run finished there.

    `storage` is any Optuna storage URL; None means an SQLite file in `directory`. `study` is the name that the
    study has there, by default one after the directory. `hardware` describes the machine of this process.
    Trials that Optuna lacks are added to its study. Raises StorageFailed, and BadInput if
    the finished trials cannot be read or are of another space.
    """
    import optuna

    from search.study.patient_storage import open_storage

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    opened = open_storage(storage or f"sqlite:///{directory / STUDY_FILE}", on_event=on_event)
    created = optuna.create_study(
        study_name=study or (STUDY_NAME if storage is None else f"{STUDY_NAME}-{directory.name}"),
        storage=opened,
        sampler=optuna.samplers.TPESampler(seed=seed, multivariate=True, n_startup_trials=8),
        direction="maximize",
        load_if_exists=True,
    )
    created.set_metric_names([objective.metric])
    _check_axes(created, space)
    records = read_records(directory / TRIALS_FILE, TrialRecord, what="a trial")
    begun = created.user_attrs.get(BEGUN)
    store = TrialStore(
        space=space,
        path=directory / TRIALS_FILE,
        study=created,
        storage=opened,
        objective=objective,
        hardware=hardware,
        trials=[trial_from_record(record, space.engines) for record in records],
        begun=None if begun is None else key_of(begun),
        resumed=bool(records or begun),
    )
    known = {frozen.user_attrs.get("trial") for frozen in created.get_trials(deepcopy=False)}
    for trial in store.trials:
        if trial.number not in known:
            created.add_trial(frozen_trial(trial, space, objective))
    return store


def _check_axes(study: optuna.Study, space: SearchSpace) -> None:
    """Keep the axes of a new study; raise BadInput if those of an earlier one are not the space's."""
    axes = {name: list(values) for name, values in space.axes().items()}
    if study.user_attrs.get(AXES, axes) != axes:
        raise BadInput(
            f"The study {study.study_name} is of another search space: its engines, cores or memory were others.",
            "Go on where it was begun, or start a new search with another --output and --study NAME.",
        )
    study.set_user_attr(AXES, axes)


def frozen_trial(trial: Trial, space: SearchSpace, objective: Objective) -> FrozenTrial:
    """Return a finished trial as Optuna stores it."""
    import optuna

    states, value, knobs = optuna.trial.TrialState, objective.optuna_value(trial), knobs_of(trial.served)
    if trial.state in ("complete", "infeasible") and value is not None:
        state = states.COMPLETE
    else:
        state = states.PRUNED if trial.state in ("pruned", "infeasible") else states.FAIL
    return optuna.trial.create_trial(
        state=state,
        value=None if state == states.FAIL else value,
        intermediate_values={0: value} if state == states.PRUNED and value is not None else None,
        params=knobs,
        distributions=distributions_of(knobs, space),
        user_attrs={"trial": trial.number, **trial.model_dump(mode="json", include=SHOWN, exclude_none=True)},
    )


def distributions_of(knobs: Iterable[str], space: SearchSpace) -> dict[str, BaseDistribution]:
    """Return the axes of a point's knobs for Optuna."""
    from optuna.distributions import CategoricalDistribution

    # What is compared with may have values that are tried nowhere else; profiles are without delays.
    compared = [*map(space.baseline, space.engines), *([] if space.start is None else [space.start])]
    given = [*map(knobs_of, compared), *(without_delays(knobs_of(one)) for one in compared)]
    axes = {
        name: tuple(dict.fromkeys((*axis, *(one[name] for one in given)))) for name, axis in space.axes().items()
    }
    return {name: CategoricalDistribution(axes[name]) for name in knobs}
