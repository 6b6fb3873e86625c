"""The storage of a search and its workers: Optuna's with heartbeats, which waits for a database that is away."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from optuna import Study
from optuna.exceptions import ExperimentalWarning, StorageInternalError, UpdateFinishedTrialError
from optuna.storages import BaseStorage, RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.trial import TrialState
from sqlalchemy.exc import (
    ArgumentError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    PendingRollbackError,
    ProgrammingError,
    SQLAlchemyError,
)

from loadgen.errors import BadInput
from model_repo.errors import install_command
from search.redact import shown_storage
from search.study.storage import RETRIES, StorageFailed
from search.trials.events import Note, OnEvent, ignore

log = logging.getLogger("tritune.storage")

FIRST_DELAY_S, LONGEST_DELAY_S = 0.2, 5.0

ANNOUNCED_AFTER_S = 1.5

DATABASE_ERRORS = (SQLAlchemyError, StorageInternalError)
"""Errors of the database or its file; a result such as "this study exists" is none of them."""

OF_SQLITE_FOR_A_WHILE = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
"""Errors while another process writes. Waiting does not help against SQLite's others, such as a full disk."""

DISK_FULL = "53100"
"""PostgreSQL's code for a full disk. Other errors of its class, such as too many connections, are temporary."""

OPERATIONS = BaseStorage.__abstractmethods__ | {
    "_create_new_trial", "_get_stale_trial_ids", "_get_trials", "_set_trial_param",
}  # fmt: skip
"""What Optuna asks of a storage, some of it by private names; each is a transaction of its own."""


class PatientStorage(RDBStorage):
    """Tries every operation again, with growing pauses, while the database is not reachable.

    After `patience_s` seconds, or at once if waiting does not help, it raises StorageFailed. If a call takes
    1.5 s, `announce` is called from another thread. A change whose confirmation got lost may be made twice: a
    second trial with the same point, which readers recognise.
    """

    patience_s = 300.0
    sleep: Callable[[float], None] = staticmethod(time.sleep)
    announce: Callable[[], None] = staticmethod(lambda: None)

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        return partial(self._patiently, found) if name in OPERATIONS else found

    def _patiently(self, operation: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        waited_s, delay_s = 0.0, FIRST_DELAY_S
        with announced(self.announce):
            while True:
                try:
                    return operation(*arguments, **named)
                except UpdateFinishedTrialError:
                    if waited_s:
                        return True  # the change was made, and its confirmation lost
                    raise
                except DATABASE_ERRORS as error:
                    if not is_outage(error) or waited_s >= self.patience_s:
                        what = f"did not answer for {waited_s:.0f} s" if waited_s else "cannot be used"
                        raise StorageFailed(
                            f"The storage {what}: {reason_of(error)}",
                            "Repair that: finished trials are in the run's directory, and --resume goes on.",
                        ) from None
                log.warning("the storage does not answer; asked again in %.1f s", delay_s)
                self.sleep(delay_s)
                waited_s += delay_s
                delay_s = min(2 * delay_s, LONGEST_DELAY_S)

    def record_heartbeat(self, trial_id: int) -> None:
        """Tell that a trial's worker is alive, without waiting: the next heartbeat comes soon."""
        with suppress(*DATABASE_ERRORS):
            super().record_heartbeat(trial_id)

    def claim(self, study: Study, number: int) -> bool:
        """Claim a queued trial, as `study.ask` does; False if another process was quicker."""
        trial_id = self.id_of(study, number)
        # Before the claim: if this process dies right after it, the missing heartbeat is noticed.
        self.record_heartbeat(trial_id)
        with suppress(UpdateFinishedTrialError):
            return bool(self.set_trial_state_values(trial_id, TrialState.RUNNING))
        return False

    def end(self, study: Study, number: int) -> None:
        """End a trial that is queued or claimed, unless it has ended."""
        with suppress(UpdateFinishedTrialError):
            self.set_trial_state_values(self.id_of(study, number), TrialState.PRUNED)

    def id_of(self, study: Study, number: int) -> int:
        """Return the storage's own key of a study's trial."""
        study_id = self.get_study_id_from_name(study.study_name)
        return int(self.get_trial_id_from_study_id_trial_number(study_id, number))

    def close(self) -> None:
        """Close the connections to the database."""
        self.remove_session()
        self.engine.dispose()


def is_outage(error: Exception) -> bool:
    """True if an error means that the database is temporarily not reachable.

    PendingRollbackError: Optuna goes on in a session that has just lost its connection; the next call has another.
    """
    cause = error.__cause__ if isinstance(error, StorageInternalError) else error
    if isinstance(cause, (InterfaceError, OperationalError)):
        if isinstance(cause.orig, sqlite3.Error):
            return getattr(cause.orig, "sqlite_errorcode", 0) & 0xFF in OF_SQLITE_FOR_A_WHILE
        return getattr(cause.orig, "sqlstate", None) != DISK_FULL
    return isinstance(cause, PendingRollbackError)


def reason_of(error: BaseException) -> str:
    """Return the driver's message on one line."""
    cause = error.__cause__ or error
    return " ".join(str(getattr(cause, "orig", None) or cause).split())


@contextmanager
def announced(announce: Callable[[], None], *, after_s: float = ANNOUNCED_AFTER_S) -> Iterator[None]:
    """Call `announce` from another thread if the block takes longer than `after_s` seconds."""
    timer = threading.Timer(after_s, announce)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


HEARTBEAT_S = 5
GRACE_S = 20
"""After 20 s without a heartbeat from its worker a running trial goes to another worker. A short network failure
takes less, a trial takes more."""

CREATED_IN_S = 3.0

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


def open_storage(url: str, *, on_event: OnEvent = ignore) -> PatientStorage:
    """Open the storage of an Optuna storage URL; create its tables if they are missing.

    If a database other than SQLite does not answer within 1.5 s, now or later, `on_event` gets a note from
    another thread. Raises BadInput for an invalid URL or a missing driver, StorageFailed if it cannot be opened;
    both messages have two lines, without the password.
    """
    # Optuna's features that may change, which our version bounds rule out; and the search's own trials, which have
    # no heartbeats, because they are stored when they are finished.
    warnings.filterwarnings("ignore", category=ExperimentalWarning)
    warnings.filterwarnings("ignore", "Heartbeat of storage")
    shown, scheme = shown_storage(url), url.partition("://")[0].partition("+")[0]

    def announce() -> None:
        if scheme != "sqlite":
            on_event(Note(text=f"The storage {shown} does not answer; waiting for it.", warning=True))

    try:
        opened = partial(
            PatientStorage,
            driver_url(url),
            engine_kwargs=POSTGRESQL_ENGINE if scheme in POSTGRESQL else {},
            heartbeat_interval=HEARTBEAT_S,
            grace_period=GRACE_S,
            heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(RETRIES),
        )
        with announced(announce):
            try:
                storage = opened()
            except (IntegrityError, ProgrammingError):  # another process creates the tables just now
                time.sleep(CREATED_IN_S)
                storage = opened()
    except ImportError:
        raise BadInput(
            f"The driver of {shown} is not installed.", f"Install it: {install_command('postgresql')}"
        ) from None
    except (ArgumentError, ValueError):  # their messages may repeat the URL
        raise BadInput(
            f"{shown} is not a storage URL.", "Write postgresql://USER@HOST/DATABASE or sqlite:///FILE"
        ) from None
    except DATABASE_ERRORS as error:
        raise StorageFailed(
            f"The storage {shown} cannot be opened: {reason_of(error)}",
            "Check its address, its name and password, and that it runs.",
        ) from None
    storage.announce = announce
    return storage


def driver_url(url: str) -> str:
    """Return the URL with our driver for PostgreSQL; for others SQLAlchemy chooses the driver."""
    scheme, separator, rest = url.partition("://")
    return f"postgresql+psycopg://{rest}" if separator and scheme in POSTGRESQL else url
