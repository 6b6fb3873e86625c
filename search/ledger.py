"""The study's memory: every finished trial in `trials.jsonl`, and the same trials in an Optuna study."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from loadgen.files import remove_drafts
from search.convert import trial_from_record, trial_to_record
from search.events import ignore
from search.files import append_line, read_records
from search.objective import COST, Objective
from search.records import TrialRecord
from search.shared_queue import SharedQueue
from search.space import Knobs, knobs_of
from search.storage import experimental_allowed, open_storage
from search.tasks import RECORD, TASK, WITHDRAWN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    import optuna

    from search.events import OnEvent
    from search.space import SearchSpace
    from search.storage import Storage
    from search.trial import Trial
    from search.why import WhyRecord

Key = tuple[int | str, ...]
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
    storage: Storage
    objective: Objective = COST
    hardware: str | None = None  # what trials are measured on that do not say it themselves
    trials: list[Trial] = field(default_factory=list)
    away: set[Key] = field(default_factory=set)  # points that workers have been asked to measure
    _asked: Key | None = None
    resumed: bool = False
    _pace: int = 0
    _unfinished: set[Key] = field(default_factory=set)

    @property
    def queue(self) -> SharedQueue:
        """The study's trials by their numbers."""
        return SharedQueue(study=self.study, storage=self.storage)

    def untried(self, knobs: Mapping[str, int | str], *, even_if_away: bool = False) -> bool:
        """Whether nothing is known of a point, and nobody is finding it out."""
        key = key_of(knobs)
        return key not in self._tried() and (even_if_away or (key not in self.away and key != self._asked))

    def ask_for(self, points: Iterable[Knobs], *, wanted: Callable[[Knobs], bool]) -> optuna.trial.Trial | None:
        """An open Optuna trial at the first of `points` that is untried and `wanted`; None if there is none."""
        for knobs in points:
            if self.untried(knobs) and wanted(knobs):
                self._asked = key_of(knobs)
                return self.queue.open_at(knobs, self.space, waiting=False)
        return None

    def ask_sampler(self, *, wanted: Callable[[Knobs], bool]) -> optuna.trial.Trial | None:
        """An open Optuna trial at a point of the sampler's choice; None when it finds nothing untried."""
        tried = self._tried()
        for _ in range(ASKS_BEFORE_GIVING_UP):
            asked = self._ask()
            knobs: Knobs = dict(asked.params)
            if TASK in asked.user_attrs:  # out of the queue for workers, where none of them had begun it
                asked.set_user_attr(WITHDRAWN, True)
                self.away.discard(key_of(knobs))
            if self.space.is_legal(knobs) and self.untried(knobs) and wanted(knobs):
                self._asked = key_of(knobs)
                return asked
            # The sampler learns from the answer that it has been here, or that there is nothing here.
            self._tell_known(asked, tried.get(key_of(knobs)))
        return None

    def record(self, asked: optuna.trial.Trial, trial: Trial) -> Trial:
        """Keep a finished trial, on the disk before anything else; returns it as it was kept."""
        kept = self.keep(trial)
        self._asked = None
        self.queue.tell(asked.number, kept, self.objective.told(kept), attributes_of(kept))
        return kept

    def keep(self, trial: Trial) -> Trial:
        """Keep a finished trial that Optuna knows already, with the next number."""
        kept = replace(trial, number=self.next_number(), hardware=trial.hardware or self.hardware)
        missing = [] if self.path.exists() else self.trials  # somebody removed the file: all of them once more
        for one in (*missing, kept):
            append_line(self.path, trial_to_record(one).model_dump_json())
        self.trials.append(kept)
        return kept

    def abandon(self, asked: optuna.trial.Trial) -> None:
        """Close an asked trial that was not finished; it leaves no record and may be asked for again."""
        self._asked = None
        self.queue.fail(asked.number)

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
                "retaken": key_of(knobs) in self._unfinished,
            }
        )

    def _tried(self) -> dict[Key, Trial]:
        return {key_of(knobs_of(trial.config)): trial for trial in self.current}

    def _ask(self) -> optuna.trial.Trial:
        asked = self.study.ask()
        for name, values in self.space.axes().items():
            asked.suggest_categorical(name, values)
        return asked

    def _tell_known(self, asked: optuna.trial.Trial, known: Trial | None) -> None:
        """Close an asked trial that is not run: a repetition with the value it had, an illegal one as pruned."""
        import optuna

        asked.set_user_attr("skipped", "already tried" if known else "not a legal combination")
        value = None if known is None else self.objective.told(known)
        if value is not None:
            self.study.tell(asked, value)
        else:
            self.study.tell(asked, state=optuna.trial.TrialState.PRUNED)


def open_ledger(
    space: SearchSpace,
    directory: Path,
    *,
    storage: str | None,
    seed: int,
    study: str | None = None,
    hardware: str | None = None,
    objective: Objective = COST,
    on_event: OnEvent = ignore,
) -> Ledger:
    """The ledger in `directory`, with the trials that an earlier run finished there.

    `storage` is any Optuna storage URL; None means an SQLite file in `directory`. `study` is the name that the
    study has there, by default one after the directory. `hardware` is what this process measures on. Trials that
    Optuna does not know are told to it, and trials that it believes to be running here are closed: their process
    is gone. Raises StorageFailed, BadInput where what was finished cannot be read.
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
    ledger = Ledger(
        space=space,
        path=directory / TRIALS_FILE,
        study=created,
        storage=opened,
        objective=objective,
        hardware=hardware,
    )
    ledger.trials.extend(_finished_trials(space, ledger.path))
    _reconcile(ledger)
    return ledger


def study_name_for(directory: Path, *, shared: bool) -> str:
    """The name of a run's study: a storage of its own holds only that one."""
    return f"{STUDY_NAME}-{directory.name}" if shared else STUDY_NAME


def _finished_trials(space: SearchSpace, path: Path) -> Iterable[Trial]:
    for record in read_records(path, TrialRecord, what="a trial"):
        yield trial_from_record(record, space.engines)


def _reconcile(ledger: Ledger) -> None:
    """Close what this process left open when it died, but not what workers have; tell Optuna what it missed."""
    known, reported = set(), set()
    kept = {trial.number: trial for trial in ledger.trials}
    for frozen in ledger.study.get_trials(deepcopy=False):
        if not frozen.state.is_finished() and (TASK not in frozen.user_attrs or WITHDRAWN in frozen.user_attrs):
            trial = kept.get(frozen.user_attrs.get("trial", -1))
            if trial is None:
                ledger.queue.fail(frozen.number)
            else:  # killed while it was told: Optuna has its attributes, and neither its value nor its end
                ledger.queue.tell(frozen.number, trial, ledger.objective.told(trial), attributes_of(trial))
        if RECORD in frozen.user_attrs:
            reported.add(key_of(frozen.params))
        elif "trial" in frozen.user_attrs:
            known.add(frozen.user_attrs["trial"])
        elif "skipped" not in frozen.user_attrs and TASK not in frozen.user_attrs:
            ledger._unfinished.add(key_of(frozen.params))  # noqa: SLF001
    ledger.resumed = bool(ledger.trials or ledger._unfinished)  # noqa: SLF001
    for trial in ledger.trials:
        knobs = knobs_of(trial.config)
        if trial.number not in known and key_of(knobs) not in reported:
            asked = ledger.queue.open_at(knobs, ledger.space, waiting=False)
            assert asked is not None
            ledger.queue.tell(asked.number, trial, ledger.objective.told(trial), attributes_of(trial))


def attributes_of(trial: Trial) -> dict[str, Any]:
    """What Optuna's dashboard shows of a trial besides its value."""
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
    """The same for the same point, whatever the order of its knobs."""
    return tuple(knobs[name] for name in sorted(knobs))
