"""Optuna's storage, opened with a heartbeat.

Operations that fail because the database is not reachable are tried again, with growing pauses.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from loadgen.errors import BadInput, EnvironmentFailed
from model_repo.errors import install_command
from search.redact import shown_storage, without_secrets_of
from search.trials.events import Note, OnEvent, ignore

if TYPE_CHECKING:
    from optuna import Study
    from optuna.storages import BaseStorage, RDBStorage

log = logging.getLogger("tritune.storage")

PATIENCE_S, FIRST_DELAY_S, LONGEST_DELAY_S = 300.0, 0.2, 5.0

ANNOUNCED_AFTER_S = 1.5


class StorageFailed(EnvironmentFailed):
    """The storage cannot be opened, cannot be written, or did not come back."""


OF_SQLITE_FOR_A_WHILE = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
"""Errors while another process writes. Waiting does not help against SQLite's others, such as a full disk."""

DISK_FULL = "53100"
"""PostgreSQL's code for a full disk. Other errors of its class, such as too many connections, are temporary."""


def import_libraries() -> None:
    """Import Optuna and the libraries of its storage, which takes 1 to 3 s, while something else is waited for."""
    from optuna.storages import RDBStorage

    RDBStorage("sqlite://")  # in memory; what it needs is imported when it is opened


def is_outage(error: BaseException) -> bool:
    """True if an error means that the database is temporarily not reachable.

    PendingRollbackError: Optuna goes on in a session that has just lost its connection; the next call has another.
    """
    from sqlalchemy.exc import InterfaceError, OperationalError, PendingRollbackError

    for one in (error, error.__cause__):  # Optuna wraps most errors into its own
        if isinstance(one, (InterfaceError, OperationalError)):
            if isinstance(one.orig, sqlite3.Error):
                return getattr(one.orig, "sqlite_errorcode", 0) & 0xFF in OF_SQLITE_FOR_A_WHILE
            return getattr(one.orig, "sqlstate", None) != DISK_FULL
        if isinstance(one, PendingRollbackError):
            return True
    return False


def database_errors() -> tuple[type[Exception], ...]:
    """Return the errors of the database or its file; a result such as "this study exists" is none of them."""
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    return SQLAlchemyError, StorageInternalError


@contextmanager
def announced(announce: Callable[[], None] | None, *, after_s: float = ANNOUNCED_AFTER_S) -> Iterator[None]:
    """Call `announce`, if given, from another thread if the block takes longer than `after_s` seconds."""
    if announce is None:
        yield
        return
    timer = threading.Timer(after_s, announce)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def patient_storage(
    storage: BaseStorage,
    url: str,
    *,
    announce: Callable[[], None] | None = None,
    patience_s: float = PATIENCE_S,
    sleep: Callable[[float], None] = time.sleep,
) -> BaseStorage:
    """Return the storage of this URL with every method tried again while the database is not reachable.

    After `patience_s` seconds, or at once if waiting does not help, a method raises StorageFailed. If a call takes
    1.5 s, `announce` is called from another thread. A change whose confirmation got lost may be made twice: a
    second trial with the same point, which readers recognise.
    """
    from optuna.exceptions import UpdateFinishedTrialError
    from optuna.storages import BaseStorage

    def patiently(name: str) -> Callable[..., Any]:
        def method(_self: BaseStorage, *arguments: Any, **named: Any) -> Any:
            waited_s, delay_s = 0.0, FIRST_DELAY_S
            with announced(announce):
                while True:
                    try:
                        return getattr(storage, name)(*arguments, **named)
                    except UpdateFinishedTrialError:
                        if waited_s and _is_done(storage, *arguments, **named):
                            return True
                        raise
                    except database_errors() as error:
                        why = reason_of(error, url)
                        if not is_outage(error):
                            raise StorageFailed(
                                f"The storage cannot be used: {why}",
                                "Repair that: finished trials are in the run's directory, and --resume goes on.",
                            ) from None
                        if waited_s >= patience_s:
                            raise StorageFailed(
                                f"The storage did not answer for {waited_s:.0f} s: {why}",
                                "Finished trials are in the run's directory; go on with --resume when it is back.",
                            ) from None
                    log.warning("the storage does not answer; asked again in %.1f s", delay_s)
                    sleep(delay_s)
                    waited_s += delay_s
                    delay_s = min(2 * delay_s, LONGEST_DELAY_S)

        return method

    names = BaseStorage.__abstractmethods__
    patient: BaseStorage = type("PatientStorage", (BaseStorage,), {name: patiently(name) for name in names})()
    return patient


def _is_done(storage: BaseStorage, trial_id: int, state: object = None, *_: object, **_named: object) -> bool:
    """True if a trial has the wanted state already: the change was made, and its confirmation lost."""
    return storage.get_trial(trial_id).state == state


HEARTBEAT_S = 5
GRACE_S = 20
"""After 20 s without a heartbeat from its worker a running trial goes to another worker. A short network failure
takes less, a trial takes more."""

RETRIES = 2
"""A trial is tried again at most twice after its worker was lost: the trial itself may crash workers."""

PAUSES_S = (0.3, 1.0, 2.0)

POSTGRESQL = {"postgres", "postgresql"}
POSTGRESQL_ENGINE = {
    "pool_pre_ping": True,
    "connect_args": {
        "connect_timeout": 10,
        "tcp_user_timeout": 30_000,
        "client_encoding": "utf8",  # for databases that were created without any encoding
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
    },
}
"""Without these a call to a host that vanished waits for the timeouts of TCP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """`patient` waits for a database that is not reachable; `direct` does not, and supports heartbeats."""

    url: str = field(repr=False)  # may hold a password
    patient: BaseStorage
    direct: RDBStorage

    def id_of(self, study: Study, number: int) -> int:
        """Return the storage's own key of a study's trial."""
        study_id = self.patient.get_study_id_from_name(study.study_name)
        return self.patient.get_trial_id_from_study_id_trial_number(study_id, number)

    def claim(self, study: Study, number: int) -> bool:
        """Claim a queued trial, as `study.ask` does; False if another process was quicker."""
        import optuna

        with suppress(optuna.exceptions.UpdateFinishedTrialError):
            running = optuna.trial.TrialState.RUNNING
            return self.patient.set_trial_state_values(self.id_of(study, number), state=running)
        return False

    def close(self) -> None:
        """Close the connections to the database."""
        self.direct.remove_session()
        self.direct.engine.dispose()


def open_storage(
    url: str, *, heartbeat_s: int = HEARTBEAT_S, grace_s: int = GRACE_S, on_event: OnEvent = ignore
) -> Storage:
    """Open the storage of an Optuna storage URL; create its tables if they are missing.

    If a database other than SQLite does not answer within 1.5 s, now or later, `on_event` gets a note from
    another thread. Raises BadInput for an invalid URL or a missing driver, StorageFailed if it cannot be opened;
    both messages have two lines, without the password.
    """
    import optuna
    from sqlalchemy.exc import ArgumentError, SQLAlchemyError

    not_one = BadInput(
        f"{shown_storage(url)} is not a storage URL.", "Write postgresql://USER@HOST/DATABASE or sqlite:///FILE"
    )

    def announce() -> None:
        text = f"The storage {shown_storage(url)} does not answer; waiting for it."
        on_event(Note(text=text, warning=True))

    waits = None if url.startswith("sqlite") else announce
    try:
        with announced(waits):
            direct = _opened(url, heartbeat_s, grace_s)
    except ImportError:
        raise BadInput(
            f"The driver of {shown_storage(url)} is not installed.",
            f"Install it: {install_command('postgresql')}",
        ) from None
    except (ArgumentError, ValueError):  # their messages may repeat the URL
        raise not_one from None
    except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
        raise StorageFailed(
            f"The storage {shown_storage(url)} cannot be opened: {reason_of(error, url)}",
            "Check its address, its name and password, and that it runs.",
        ) from None
    cached = optuna.storages.get_storage(direct)  # reads finished trials once
    patient = patient_storage(cached, url, announce=waits)
    return Storage(url=url, patient=patient, direct=direct)


def _opened(url: str, heartbeat_s: int, grace_s: int) -> RDBStorage:
    """Open the storage; try again if another process creates the tables at the same time."""
    import optuna
    from sqlalchemy.exc import IntegrityError, ProgrammingError

    scheme = url.partition("://")[0].partition("+")[0]
    for pause_s in (*PAUSES_S, None):
        try:
            with experimental_allowed():
                return optuna.storages.RDBStorage(
                    driver_url(url),
                    engine_kwargs=POSTGRESQL_ENGINE if scheme in POSTGRESQL else {},
                    heartbeat_interval=heartbeat_s,
                    grace_period=grace_s,
                    heartbeat_stale_trial_callback=optuna.storages.RetryHeartbeatStaleTrialCallback(RETRIES),
                )
        except (IntegrityError, ProgrammingError):
            if pause_s is None:
                raise
            time.sleep(pause_s)
    raise AssertionError


def driver_url(url: str) -> str:
    """Return the URL with our driver for PostgreSQL; for others SQLAlchemy chooses the driver."""
    scheme, separator, rest = url.partition("://")
    return f"postgresql+psycopg://{rest}" if separator and scheme in POSTGRESQL else url


def reason_of(error: BaseException, url: str) -> str:
    """Return the driver's message on one line, without the secrets of the storage's URL."""
    cause = error.__cause__ or error
    original = getattr(cause, "orig", None) or cause
    return without_secrets_of(" ".join(str(original).split()), url)


@contextmanager
def unless_away(storage: Storage) -> Iterator[None]:
    """Skip the rest of the block if the database fails, without waiting: what is in it is done again soon."""
    try:
        yield
    except database_errors() as error:
        log.debug("the storage does not answer: %s", reason_of(error, storage.url))


def fail_lost_trials(study_name: str, storage: Storage) -> None:
    """Close the trials whose workers sent no heartbeat and queue each again, by Optuna's own mechanism."""
    import optuna

    with unless_away(storage), experimental_allowed():
        optuna.storages.fail_stale_trials(optuna.load_study(study_name=study_name, storage=storage.direct))


@contextmanager
def experimental_allowed() -> Iterator[None]:
    """Suppress Optuna's ExperimentalWarning in a block: "may change", which our version bounds rule out."""
    import optuna

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield
