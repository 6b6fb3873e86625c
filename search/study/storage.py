"""The storage of a search and its workers: Optuna's, with heartbeats."""

from __future__ import annotations

import time
import warnings
from functools import partial
from typing import TYPE_CHECKING

from loadgen.errors import BadInput, EnvironmentFailed
from model_repo.errors import install_command
from search.redact import shown_storage
from search.trials.events import Note, OnEvent, ignore

if TYPE_CHECKING:
    from search.study.patient_storage import PatientStorage


class StorageFailed(EnvironmentFailed):
    """The storage cannot be opened, cannot be written, or did not come back."""


def import_libraries() -> None:
    """Import Optuna and the libraries of its storage, which takes 1 to 3 s, while something else is waited for."""
    from optuna.storages import RDBStorage

    RDBStorage("sqlite://")  # in memory; what it needs is imported when it is opened


HEARTBEAT_S = 5
GRACE_S = 20
"""After 20 s without a heartbeat from its worker a running trial goes to another worker. A short network failure
takes less, a trial takes more."""

RETRIES = 2
"""A trial is tried again at most twice after its worker was lost: the trial itself may crash workers."""

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
    import optuna
    from sqlalchemy.exc import ArgumentError, IntegrityError, ProgrammingError, SQLAlchemyError

    from search.study.patient_storage import PatientStorage, announced, reason_of

    # Optuna's features that may change, which our version bounds rule out; and the search's own trials, which have
    # no heartbeats, because they are stored when they are finished.
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
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
            heartbeat_stale_trial_callback=optuna.storages.RetryHeartbeatStaleTrialCallback(RETRIES),
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
    except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
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
