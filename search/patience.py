"""A storage that waits for its database: what fails because it is away is tried again, later and later."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from optuna.storages import BaseStorage

log = logging.getLogger("tritune.storage")

PATIENCE_S = 300.0
FIRST_DELAY_S = 0.2
LONGEST_DELAY_S = 5.0


def is_outage(error: BaseException) -> bool:
    """Whether an error says that the database cannot be reached, rather than that something is wrong with it."""
    from sqlalchemy.exc import InterfaceError, OperationalError

    return any(isinstance(one, (InterfaceError, OperationalError)) for one in (error, error.__cause__))


def patient_storage(
    storage: BaseStorage,
    *,
    given_up: Callable[[Exception, float], Exception],
    patience_s: float = PATIENCE_S,
    sleep: Callable[[float], None] = time.sleep,
) -> BaseStorage:
    """`storage` with every method tried again while the database is away, for `patience_s` seconds at the most.

    Then it raises what `given_up` makes of the last error and the seconds that were waited. A change that was made
    although its confirmation got lost may be made twice: a second trial with the same point, which is recognised
    as such where it is read.
    """
    from optuna.exceptions import UpdateFinishedTrialError
    from optuna.storages import BaseStorage

    def patiently(name: str) -> Callable[..., Any]:
        def method(_self: BaseStorage, *arguments: Any, **named: Any) -> Any:
            waited_s, delay_s = 0.0, FIRST_DELAY_S
            while True:
                try:
                    return getattr(storage, name)(*arguments, **named)
                except UpdateFinishedTrialError:
                    if waited_s and _is_done(storage, *arguments, **named):
                        return True
                    raise
                except Exception as error:
                    if not is_outage(error):
                        raise
                    if waited_s >= patience_s:
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
