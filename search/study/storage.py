"""What may be said of a search's storage without importing Optuna, which takes long."""

from __future__ import annotations

from loadgen.errors import EnvironmentFailed


class StorageFailed(EnvironmentFailed):
    """The storage cannot be opened, cannot be written, or did not come back."""


RETRIES = 2
"""A trial is tried again at most twice after its worker was lost: the trial itself may crash workers."""


def import_libraries() -> None:
    """Import Optuna and the libraries of its storage, which takes 1 to 3 s, while something else is waited for."""
    from optuna.storages import RDBStorage

    RDBStorage("sqlite://")  # in memory; what it needs is imported when it is opened
