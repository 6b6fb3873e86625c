"""A storage that waits for its database: what fails because it is away is tried again, later and later."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from optuna.storages import BaseStorage

log = logging.getLogger("tritune.storage")

PATIENCE_S = 300.0
FIRST_DELAY_S = 0.2
LONGEST_DELAY_S = 5.0


ANNOUNCED_AFTER_S = 1.5

OF_SQLITE_FOR_A_WHILE = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
"""Another process writes. Whatever else SQLite refuses, such as a full disk, waiting does not help."""

DISK_FULL = "53100"
"""PostgreSQL's code for it. Its other refusals of this class, such as too many connections, pass."""


def is_outage(error: BaseException) -> bool:
    """True if an error says that the database cannot be reached for now, rather than that something is wrong."""
    from sqlalchemy.exc import InterfaceError, OperationalError

    refused = (InterfaceError, OperationalError)
    return any(isinstance(one, refused) and _passes(one.orig) for one in (error, error.__cause__))


def is_database_error(error: BaseException) -> bool:
    """True if an error comes from the database or its file, and is no answer such as "this study exists"."""
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    return isinstance(error, (SQLAlchemyError, StorageInternalError))


def _passes(refusal: BaseException | None) -> bool:
    if isinstance(refusal, sqlite3.Error):
        code = getattr(refusal, "sqlite_errorcode", None)
        return code is not None and code & 0xFF in OF_SQLITE_FOR_A_WHILE
    return getattr(refusal, "sqlstate", None) != DISK_FULL


@contextmanager
def announced(announce: Callable[[], None] | None, *, after_s: float = ANNOUNCED_AFTER_S) -> Iterator[None]:
    """Call `announce` from another thread if the block takes longer than so many seconds; None: nobody listens."""
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
    *,
    given_up: Callable[[Exception, float], Exception],
    announce: Callable[[], None] | None = None,
    patience_s: float = PATIENCE_S,
    sleep: Callable[[float], None] = time.sleep,
) -> BaseStorage:
    """`storage` with every method tried again while the database is away, for `patience_s` seconds at the most.

    Then it raises what `given_up` makes of the last error and the seconds that were waited; at once, where waiting
    does not help. `announce` is called when a call has taken 1.5 s, from another thread. A change that was made
    although its confirmation got lost may be made twice: a second trial with the same point, which is recognised
    as such where it is read.
    """
    from optuna.exceptions import UpdateFinishedTrialError
    from optuna.storages import BaseStorage

    def patiently(name: str) -> Callable[..., Any]:
        def method(_self: BaseStorage, *arguments: Any, **named: Any) -> Any:
            with announced(announce):
                return tried(*arguments, **named)

        def tried(*arguments: Any, **named: Any) -> Any:
            waited_s, delay_s = 0.0, FIRST_DELAY_S
            while True:
                try:
                    return getattr(storage, name)(*arguments, **named)
                except UpdateFinishedTrialError:
                    if waited_s and _is_done(storage, *arguments, **named):
                        return True
                    raise
                except Exception as error:
                    if not is_database_error(error):
                        raise
                    if waited_s >= patience_s or not is_outage(error):
                        raise given_up(error, waited_s) from None
                    log.warning("the storage does not answer; asked again in %.1f s", delay_s)
                sleep(delay_s)
                waited_s += delay_s
                delay_s = min(2 * delay_s, LONGEST_DELAY_S)

        return method

    names = BaseStorage.__abstractmethods__
    patient: BaseStorage = type("PatientStorage", (BaseStorage,), {name: patiently(name) for name in names})()
    return patient


def _is_done(
    storage: BaseStorage, trial_id: int, state: object = None, values: object = None, **_named: object
) -> bool:
    """Whether a trial has the state that it was to get: the change was made, and its confirmation lost."""
    del values
    return bool(storage.get_trial(trial_id).state == state)
