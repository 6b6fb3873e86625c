"""A database that goes away for half a minute in the middle of a search: waited for, and nothing is lost."""

from pathlib import Path

import optuna
import pytest
from simulated_bench import SimulatedBench
from spaces import two_core_space
from sqlalchemy import event
from sqlalchemy.exc import OperationalError
from virtual_search import search_on

from model_repo.spec import ServingConfig
from search.records.run_files import read_trials
from search.study import patient_storage
from search.study.patient_storage import PatientStorage

AWAY_S = 30.0


class Outage:
    """Every statement fails from `begin` on, until so many seconds have been slept."""

    def __init__(self) -> None:
        self.left_s = 0.0
        self.slept_s = 0.0
        self.refused = 0

    def begin(self) -> None:
        self.left_s = AWAY_S

    def sleep(self, seconds: float) -> None:
        self.slept_s += seconds
        self.left_s -= seconds

    def before_execute(self, *_: object) -> None:
        if self.left_s > 0:
            self.refused += 1
            raise OperationalError("SELECT 1", {}, Exception("connection refused"))


@pytest.fixture
def outage(monkeypatch: pytest.MonkeyPatch) -> Outage:
    """Goes for every storage that is opened from now on; waiting for it takes no time."""
    outage, real = Outage(), patient_storage.open_storage
    monkeypatch.setattr(PatientStorage, "sleep", staticmethod(outage.sleep))

    def watched(url: str, **options: object) -> PatientStorage:
        opened = real(url, **options)  # type: ignore[arg-type]
        event.listen(opened.engine, "before_cursor_execute", outage.before_execute)
        return opened

    monkeypatch.setattr(patient_storage, "open_storage", watched)
    return outage


def test_half_a_minute_without_the_database_loses_nothing(tmp_path: Path, outage: Outage) -> None:
    class Interrupted(SimulatedBench):
        """The database goes away while a trial is under load."""

        def load(self, config: ServingConfig) -> None:
            super().load(config)
            if len(self.loaded) == 3 and not outage.refused:
                outage.begin()

    bench, url = Interrupted(), f"sqlite:///{tmp_path / 'shared.db'}"
    kept, certified, _ = search_on(
        bench, two_core_space(tmp_path), tmp_path, storage=url, stop=lambda: len(bench.loaded) > 13
    )
    assert outage.refused > 3
    assert outage.slept_s >= AWAY_S
    assert certified is not None
    assert len(kept.trials) >= 2
    assert [trial.number for trial in read_trials(tmp_path)] == list(range(len(kept.trials)))
    told = [one for one in kept.study.get_trials() if one.state == optuna.trial.TrialState.COMPLETE]
    complete = [trial for trial in kept.trials if trial.state == "complete"]
    assert sorted(one.user_attrs["trial"] for one in told) == sorted(trial.number for trial in complete)
