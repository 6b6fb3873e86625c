"""The trial store: every finished trial in `trials.jsonl` and in an Optuna study."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.files import remove_drafts
from search.records.line_files import append_line, read_records
from search.records.run_files import TRIALS_FILE
from search.records.trial import TrialRecord, WhyRecord
from search.space import Knobs, SearchSpace, knobs_of
from search.study.optuna_queue import SharedQueue
from search.study.storage import Storage, experimental_allowed, open_storage
from search.study.tasks import RECORD, TASK, WITHDRAWN
from search.trials.events import OnEvent, ignore
from search.trials.objective import COST, Objective
from search.trials.trial import Trial, trial_from_record

if TYPE_CHECKING:
    import optuna


Key = tuple[int | str, ...]
STUDY_NAME = "tritune"

STUDY_FILE = "study.db"
ASKS_BEFORE_GIVING_UP = 60


@dataclass(slots=True)
class TrialStore:
    """Asks Optuna for points, and stores the finished trials.

    A finished trial is first appended to `trials.jsonl`, flushed to the disk, and then reported to Optuna, so that
    a crash between the two loses nothing: opening the store again reports the missing trials to Optuna.
    """

    space: SearchSpace
    path: Path
    study: optuna.Study
    storage: Storage
    objective: Objective = COST
    hardware: str | None = None  # of trials without a `hardware` of their own
    trials: list[Trial] = field(default_factory=list)
    away: set[Key] = field(default_factory=set)  # points that workers have been asked to measure
    _asked: Key | None = None
    resumed: bool = False
    _unfinished: set[Key] = field(default_factory=set)

    @property
    def queue(self) -> SharedQueue:
        """The trials of the study by number."""
        return SharedQueue(study=self.study, storage=self.storage)

    def untried(self, knobs: Mapping[str, int | str], *, even_if_away: bool = False) -> bool:
        """True if a point has not been measured, and is not being measured."""
        key = key_of(knobs)
        return key not in self._tried() and (even_if_away or (key not in self.away and key != self._asked))

    def ask_for(self, points: Iterable[Knobs], *, wanted: Callable[[Knobs], bool]) -> optuna.trial.Trial | None:
        """Open an Optuna trial at the first of `points` that is untried and `wanted`; None if there is none."""
        for knobs in points:
            if self.untried(knobs) and wanted(knobs):
                self._asked = key_of(knobs)
                return self.queue.open_at(knobs, self.space, waiting=False)
        return None

    def ask_sampler(self, *, wanted: Callable[[Knobs], bool]) -> optuna.trial.Trial | None:
        """Open an Optuna trial at a point that the sampler chooses; None if it finds no untried one."""
        tried = self._tried()
        for _ in range(ASKS_BEFORE_GIVING_UP):
            asked = self._ask()
            knobs: Knobs = dict(asked.params)
            if TASK in asked.user_attrs:  # from the queue for workers; none of them had begun it
                asked.set_user_attr(WITHDRAWN, True)
                self.away.discard(key_of(knobs))
            if self.space.is_legal(knobs) and self.untried(knobs) and wanted(knobs):
                self._asked = key_of(knobs)
                return asked
            # The sampler gets the known value of this point, or the result that it is not legal.
            self._tell_known(asked, tried.get(key_of(knobs)))
        return None

    def record(self, asked: optuna.trial.Trial, trial: Trial) -> Trial:
        """Store a finished trial, on the disk first; return it with its number."""
        kept = self.keep(trial)
        self._asked = None
        self.queue.tell(asked.number, kept, self.objective.optuna_value(kept), attributes_of(kept))
        return kept

    def keep(self, trial: Trial) -> Trial:
        """Store a finished trial that Optuna has already, with the next number."""
        kept = trial.changed(number=self.next_number(), hardware=trial.hardware or self.hardware)
        missing = [] if self.path.exists() else self.trials  # the file was removed: write all trials again
        for one in (*missing, kept):
            append_line(self.path, one.model_dump_json())
        self.trials.append(kept)
        return kept

    def abandon(self, asked: optuna.trial.Trial) -> None:
        """Close an asked trial that was not finished; it leaves no record and may be asked for again."""
        self._asked = None
        self.queue.fail(asked.number)

    def next_number(self) -> int:
        """Return the number of the next trial; numbers count from 0 without gaps."""
        return len(self.trials)

    def best(self) -> Trial | None:
        """Return the complete trial that is best by the objective; None if there is none."""
        return self.objective.best(self.trials)

    def as_of_now(self, why: WhyRecord, knobs: Knobs) -> WhyRecord:
        """Return the reason of a trial with the best so far, and a flag that the point was begun before."""
        best = self.best()
        return why.changed(
            best_trial=None if best is None else best.number,
            resumed=self.resumed,
            retaken=key_of(knobs) in self._unfinished,
        )

    def _tried(self) -> dict[Key, Trial]:
        return {key_of(knobs_of(trial.served)): trial for trial in self.trials}

    def _ask(self) -> optuna.trial.Trial:
        asked = self.study.ask()
        for name, values in self.space.axes().items():
            asked.suggest_categorical(name, values)
        return asked

    def _tell_known(self, asked: optuna.trial.Trial, known: Trial | None) -> None:
        """Close an asked trial that is not run: a repeated point with its old value, an illegal one as pruned."""
        import optuna

        asked.set_user_attr("skipped", "already tried" if known else "not a legal combination")
        value = None if known is None else self.objective.optuna_value(known)
        if value is not None:
            self.study.tell(asked, value)
        else:
            self.study.tell(asked, state=optuna.trial.TrialState.PRUNED)


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
    Trials that Optuna lacks are reported to it, and trials that it believes to be running here are closed: their
    process is gone. Raises StorageFailed, and BadInput if the finished trials cannot be read.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    remove_drafts(directory)
    opened = open_storage(storage or f"sqlite:///{directory / STUDY_FILE}", on_event=on_event)
    with experimental_allowed():
        sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, n_startup_trials=8)
        created = optuna.create_study(
            study_name=study or study_name_for(directory, shared=storage is not None),
            storage=opened.patient,
            sampler=sampler,
            direction="maximize",
            load_if_exists=True,
        )
        created.set_metric_names([objective.metric])
    store = TrialStore(
        space=space,
        path=directory / TRIALS_FILE,
        study=created,
        storage=opened,
        objective=objective,
        hardware=hardware,
    )
    store.trials.extend(_finished_trials(space, store.path))
    _reconcile(store)
    return store


def study_name_for(directory: Path, *, shared: bool) -> str:
    """Return the name of a run's study: a fixed one, or one after the directory in a shared storage."""
    return f"{STUDY_NAME}-{directory.name}" if shared else STUDY_NAME


def _finished_trials(space: SearchSpace, path: Path) -> Iterable[Trial]:
    for record in read_records(path, TrialRecord, what="a trial"):
        yield trial_from_record(record, space.engines)


def _reconcile(store: TrialStore) -> None:
    """Close trials that this process left open when it died, not those of workers; report missing trials."""
    known, reported = set(), set()
    kept = {trial.number: trial for trial in store.trials}
    for frozen in store.study.get_trials(deepcopy=False):
        if not frozen.state.is_finished() and (TASK not in frozen.user_attrs or WITHDRAWN in frozen.user_attrs):
            trial = kept.get(frozen.user_attrs.get("trial", -1))
            if trial is None:
                store.queue.fail(frozen.number)
            else:  # killed while reporting it: Optuna has its attributes, but no value and no state
                store.queue.tell(frozen.number, trial, store.objective.optuna_value(trial), attributes_of(trial))
        if RECORD in frozen.user_attrs:
            reported.add(key_of(frozen.params))
        elif "trial" in frozen.user_attrs:
            known.add(frozen.user_attrs["trial"])
        elif "skipped" not in frozen.user_attrs and TASK not in frozen.user_attrs:
            store._unfinished.add(key_of(frozen.params))  # noqa: SLF001
    store.resumed = bool(store.trials or store._unfinished)  # noqa: SLF001
    for trial in store.trials:
        knobs = knobs_of(trial.served)
        if trial.number not in known and key_of(knobs) not in reported:
            asked = store.queue.open_at(knobs, store.space, waiting=False)
            assert asked is not None
            store.queue.tell(asked.number, trial, store.objective.optuna_value(trial), attributes_of(trial))


def attributes_of(trial: Trial) -> dict[str, Any]:
    """Return the attributes that Optuna's dashboard shows with a trial's value."""
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
        "hardware": trial.hardware,
        "worker": trial.worker,
    }
    return {name: value for name, value in attributes.items() if value is not None}


def key_of(knobs: Mapping[str, int | str]) -> Key:
    """Return a key of a point that does not depend on the order of its knobs."""
    return tuple(knobs[name] for name in sorted(knobs))
