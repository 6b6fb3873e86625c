"""Optuna's storage: opened with a heartbeat, and patient with a database that goes away for a while."""

from __future__ import annotations

import logging
import time
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from loadgen.user_errors import BadInput, EnvironmentFailed
from search.events import Note, ignore
from search.patience import announced, is_outage, patient_storage
from search.secrets import is_storage_url, shown_storage, without_secrets_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optuna.storages import BaseStorage, RDBStorage

    from search.events import OnEvent

log = logging.getLogger("tritune.storage")

HEARTBEAT_S = 5
GRACE_S = 20
"""A running trial whose worker was not heard of for so long is given to another; longer than a hiccup of the
network, shorter than a trial."""

RETRIES = 2
"""How often a trial is tried again after its worker was lost: it may be the trial that kills them."""

PAUSES_S = (0.3, 1.0, 2.0)

POSTGRESQL = {"postgres", "postgresql"}
CONNECT_TIMEOUT_S = 10
ANSWER_TIMEOUT_S = 30


class StorageFailed(EnvironmentFailed):
    """The storage cannot be opened, cannot be written, or did not come back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """`patient` waits for a database that went away; `direct` does not, and knows of heartbeats."""

    url: str = field(repr=False)  # may hold a password
    patient: BaseStorage
    direct: RDBStorage

    def close(self) -> None:
        """Leave the database."""
        self.direct.remove_session()
        self.direct.engine.dispose()


def open_storage(
    url: str, *, heartbeat_s: int = HEARTBEAT_S, grace_s: int = GRACE_S, on_event: OnEvent = ignore
) -> Storage:
    """The storage behind an Optuna storage URL, its tables made where they are missing.

    When a database elsewhere does not answer, now or later, `on_event` is told after 1.5 s, from another thread.
    Raises BadInput for a URL that is none or whose driver is missing, StorageFailed when it cannot be opened; both
    in two lines without the password.
    """
    import optuna
    from sqlalchemy.exc import ArgumentError, SQLAlchemyError

    not_one = BadInput(
        f"{shown_storage(url)} is not a storage URL.", "Write postgresql://USER@HOST/DATABASE or sqlite:///FILE"
    )
    if not is_storage_url(url):
        raise not_one

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
            "Install it: pip install 'tritune[postgresql]'",
        ) from None
    except (ArgumentError, ValueError):  # their messages may repeat the URL
        raise not_one from None
    except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
        raise StorageFailed(
            f"The storage {shown_storage(url)} cannot be opened: {reason_of(error, url)}",
            "Check its address, its name and password, and that it runs.",
        ) from None
    cached = optuna.storages.get_storage(direct)  # reads finished trials once
    patient = patient_storage(cached, given_up=partial(_given_up, url), announce=waits)
    return Storage(url=url, patient=patient, direct=direct)


def _opened(url: str, heartbeat_s: int, grace_s: int) -> RDBStorage:
    """Processes that make the tables at the same time are in each other's way: the later ones try again."""
    import optuna
    from sqlalchemy.exc import IntegrityError, ProgrammingError

    for pause_s in (*PAUSES_S, None):
        try:
            with experimental_allowed():
                return optuna.storages.RDBStorage(
                    driver_url(url),
                    engine_kwargs=_engine_arguments(url),
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
    """The URL with the driver that we bring for PostgreSQL; others are SQLAlchemy's to choose."""
    scheme, separator, rest = url.partition("://")
    return f"postgresql+psycopg://{rest}" if separator and scheme in POSTGRESQL else url


def reason_of(error: BaseException, url: str) -> str:
    """The driver's own words on one line, without the secrets of the storage's URL."""
    cause = error.__cause__ or error
    original = getattr(cause, "orig", None) or cause
    return without_secrets_of(" ".join(str(original).split()), url)


def beat_once(storage: Storage, trial_id: int) -> None:
    """Tell that a trial's worker is alive; a database that does not answer is asked again with the next beat."""
    try:
        storage.direct.record_heartbeat(trial_id)
    except Exception as error:
        log.debug("no heartbeat: %s", reason_of(error, storage.url))


def fail_lost_trials(study_name: str, storage: Storage) -> None:
    """Close the trials whose workers fell silent and put each into the queue again: Optuna's own mechanism."""
    import optuna

    try:
        with experimental_allowed():
            study = optuna.load_study(study_name=study_name, storage=storage.direct)
            optuna.storages.fail_stale_trials(study)
    except optuna.exceptions.StorageInternalError as error:
        log.debug("lost trials were not looked for: %s", reason_of(error, storage.url))


def _engine_arguments(url: str) -> dict[str, Any]:
    scheme = url.partition("://")[0].partition("+")[0]
    if scheme not in POSTGRESQL:
        return {}
    # Without these a host that vanished is waited for as long as TCP pleases.
    arguments = {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "tcp_user_timeout": 1000 * ANSWER_TIMEOUT_S,
        "client_encoding": "utf8",  # text is text, even in a database that was made without any encoding
    }
    keepalives = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
    return {"pool_pre_ping": True, "connect_args": {**arguments, **keepalives}}


def _given_up(url: str, error: Exception, waited_s: float) -> StorageFailed:
    if not is_outage(error):
        return StorageFailed(
            f"The storage cannot be used: {reason_of(error, url)}",
            "Mend that: what is finished stands in the run's directory, and --resume goes on.",
        )
    return StorageFailed(
        f"The storage did not answer for {waited_s:.0f} s: {reason_of(error, url)}",
        "What is finished stands in the run's directory; go on with --resume when the storage is back.",
    )


@contextmanager
def experimental_allowed() -> Iterator[None]:
    """Optuna's "experimental" means "may change", which our version bounds answer."""
    import optuna

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield
