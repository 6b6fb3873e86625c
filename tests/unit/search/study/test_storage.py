"""A database that goes away for a while is waited for; one that says no is not."""

import shutil
import socket
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna import Study
from optuna.exceptions import StorageInternalError
from sqlalchemy.exc import OperationalError, PendingRollbackError

from loadgen.errors import BadInput
from search.study.patient_storage import LONGEST_DELAY_S, PatientStorage, announced, driver_url, open_storage
from search.study.storage import StorageFailed

COMPLETE = optuna.trial.TrialState.COMPLETE


class Flaky(PatientStorage):
    """A storage in memory, whose next operations fail: before they did anything, or after."""

    def __init__(self, sleep: Callable[[float], None]) -> None:
        self.away, self.forgets_to_answer, self.error = 0, False, outage()
        self.patience_s, self.sleep = 30.0, sleep
        super().__init__("sqlite://")

    def _patiently(self, operation: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        def flaky(*arguments: Any, **named: Any) -> Any:
            if self.away:
                self.away -= 1
                raise self.error
            result = operation(*arguments, **named)
            if self.forgets_to_answer:
                self.forgets_to_answer = False
                raise outage()
            return result

        return super()._patiently(flaky, *arguments, **named)


def outage() -> StorageInternalError:
    error = optuna.exceptions.StorageInternalError("An exception is raised during the commit.")
    error.__cause__ = OperationalError("SELECT 1", {}, Exception("connection refused"))
    return error


@pytest.fixture
def slept() -> list[Any]:
    return []


@pytest.fixture
def flaky(slept: list[Any]) -> Flaky:
    return Flaky(slept.append)


@pytest.fixture
def study(flaky: Flaky) -> Study:
    return optuna.create_study(study_name="s", storage=flaky)


def test_an_outage_is_waited_for_later_and_later(flaky: Flaky, slept: Any, study: Study) -> None:
    flaky.away = 8
    study.set_user_attr("a", 1)
    assert study.user_attrs == {"a": 1}
    assert slept == sorted(slept)
    assert len(slept) == 8
    assert max(slept) == LONGEST_DELAY_S


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_session_that_has_lost_its_connection_is_asked_again(
    flaky: Flaky, slept: Any, study: Study, wrapped: bool
) -> None:
    """Optuna reads trials in two ways, the second after an error of the first and in the same session."""
    lost: Exception = PendingRollbackError("Can't reconnect until invalid transaction is rolled back.")
    if wrapped:
        flaky.error.__cause__ = lost
    else:
        flaky.error = lost  # type: ignore[assignment]
    flaky.away = 1
    study.set_user_attr("a", 1)
    assert study.user_attrs == {"a": 1}
    assert len(slept) == 1


def test_patience_ends_with_the_reason(flaky: Flaky, slept: Any, study: Study) -> None:
    flaky.away = 10_000
    with pytest.raises(StorageFailed, match="connection refused"):
        study.set_user_attr("a", 1)
    assert 30.0 <= sum(slept) < 30.0 + LONGEST_DELAY_S


def test_a_result_that_arrived_although_its_confirmation_was_lost_counts(flaky: Flaky, study: Study) -> None:
    trial = study.ask()
    storage = study._storage
    flaky.forgets_to_answer = True
    assert storage.set_trial_state_values(trial._trial_id, state=COMPLETE, values=[1.0])
    assert study.trials[0].value == 1.0


def test_a_finished_trial_is_still_an_error_without_an_outage(study: Study) -> None:
    trial = study.ask()
    study._storage.set_trial_state_values(trial._trial_id, state=COMPLETE, values=[1.0])
    with pytest.raises(optuna.exceptions.UpdateFinishedTrialError):
        study._storage.set_trial_state_values(trial._trial_id, state=COMPLETE, values=[1.0])


def test_what_is_no_outage_is_not_tried_again(slept: Any, study: Study) -> None:
    with pytest.raises(KeyError):
        study._storage.get_trial(12345)
    assert slept == []


@pytest.mark.parametrize(
    "url",
    ["postgresql://me:s3cret@127.0.0.1:1/optuna", "postgresql://me:s3cret@127.0.0.1:none/optuna", "me:s3cret@x"],
)
def test_a_storage_that_cannot_be_opened_is_two_lines_without_its_password(url: str) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(StorageFailed if url.endswith(":1/optuna") else BadInput) as raised:
        open_storage(url)
    assert len(str(raised.value).splitlines()) == 2
    assert url.startswith("me:") or "s3cret" not in str(raised.value)


def test_postgresql_gets_the_driver_that_we_bring() -> None:
    assert driver_url("postgresql://h/d") == driver_url("postgres://h/d") == "postgresql+psycopg://h/d"
    assert driver_url("postgresql+psycopg2://h/d") == "postgresql+psycopg2://h/d"
    assert driver_url("sqlite:////tmp/x.db") == "sqlite:////tmp/x.db"


def make_lost(folder: Path) -> None:
    shutil.rmtree(folder)


def make_locked(folder: Path) -> sqlite3.Connection:
    holder = sqlite3.connect(folder / "x.db", isolation_level=None)
    holder.execute("begin exclusive")
    return holder


@pytest.mark.parametrize(
    ("prepare", "says", "waits"), [(make_lost, "unable to open", False), (make_locked, "is locked", True)]
)
def test_only_a_locked_file_is_waited_for(
    prepare: Callable[[Any], Any], says: str, waits: bool, tmp_path: Path, slept: Any
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    url, quick = f"sqlite:///{folder / 'x.db'}", {"connect_args": {"timeout": 0}}
    storage = PatientStorage(url, engine_kwargs=quick)
    storage.patience_s, storage.sleep = 1.0, slept.append
    storage.close()
    holder = prepare(folder)
    with pytest.raises(StorageFailed, match=says):
        storage.create_new_study([optuna.study.StudyDirection.MAXIMIZE])
    assert bool(slept) is waits
    storage.close()
    if holder is not None:
        holder.close()


def test_a_database_whose_disk_is_full_is_not_waited_for(flaky: Flaky, slept: Any, study: Study) -> None:
    full = Exception("could not extend file: No space left on device")
    full.sqlstate = "53100"  # type: ignore[attr-defined]
    flaky.away, flaky.error.__cause__ = 1, OperationalError("INSERT", {}, full)
    with pytest.raises(StorageFailed, match="No space left"):
        study.set_user_attr("a", 1)
    assert slept == []


def test_a_database_that_is_silent_is_announced_while_it_is_waited_for() -> None:
    """It takes the connection and never says a word: the wait is for the time-out of the network."""
    pytest.importorskip("psycopg")
    silent = socket.create_server(("127.0.0.1", 0))
    url = f"postgresql://me:s3cret@127.0.0.1:{silent.getsockname()[1]}/optuna"
    seen, announced = [], threading.Event()

    def on_event(event: Any) -> None:
        seen.append(event)
        announced.set()

    def opened() -> None:
        with pytest.raises(StorageFailed) as caught:
            open_storage(url, on_event=on_event)
        seen.append(caught.value)

    opening = threading.Thread(target=opened)
    opening.start()
    connection, _ = silent.accept()
    assert announced.wait(240)
    connection.close()
    silent.close()
    opening.join()
    note, error = seen
    assert "does not answer" in note.text
    assert "s3cret" not in note.text
    assert error.exit_code == 3


def test_what_ends_soon_is_not_announced() -> None:
    told = []
    with announced(lambda: told.append(1), after_s=240.0):
        *_, timer = threading.enumerate()
    timer.join()
    assert told == []
