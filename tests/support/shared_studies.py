"""A small space, and the two sides of a shared study on simulated benches; run as a program, one more worker.

python shared_studies.py STUDY NAME FOLDER [hang]   (the storage's URL is in TRITUNE_STORAGE)
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import optuna
from simulated_bench import SimulatedBench
from spaces import two_core_space

from loadgen.spec.limits import LatencyLimit
from model_repo.spec import ServingConfig
from search.records.slo import Slo
from search.records.trial import WhyRecord
from search.space import SearchSpace
from search.study.patient_storage import PatientStorage, open_storage
from search.study.pool import TaskRecord, WorkerPool, open_pool, queue_of
from search.study.store import TrialStore, open_store
from search.study.worker import Worker

SLO = Slo(limits=(LatencyLimit(limit_ms=50.0),))
MACHINE = "a machine of the test"
HEARTBEAT_S, GRACE_S = 1, 5
OPENED: list[Any] = []


def close_all() -> None:
    """Leave every database that was opened here."""
    while OPENED:
        OPENED.pop().close()


def opened(storage: PatientStorage) -> PatientStorage:
    storage.heartbeat_interval, storage.grace_period = HEARTBEAT_S, GRACE_S
    OPENED.append(storage)
    return storage


def small_space(folder: Path) -> SearchSpace:
    folder.mkdir(parents=True, exist_ok=True)
    return two_core_space(folder, limit_ms=SLO.first.limit_ms)


def coordinator(folder: Path, url: str | None, study: str | None = "shared") -> tuple[TrialStore, WorkerPool]:
    """A trial store and its workers; heartbeats are shorter than usual."""
    space = small_space(folder)
    store = open_store(space, folder, storage=url, seed=1, study=study, hardware=MACHINE)
    opened(store.storage)
    return store, open_pool(store)


def task(**changes: Any) -> TaskRecord:
    return TaskRecord(**{"why": WhyRecord(cause="landmark"), "elapsed_s": 0.0, "budget_s": 600.0, **changes})


def worker(
    folder: Path,
    url: str,
    *,
    name: str = "w1",
    study: str = "shared",
    bench: SimulatedBench | None = None,
    **changes: Any,
) -> Worker:
    storage = opened(open_storage(url))
    given: dict[str, Any] = {
        "name": name,
        "hardware": MACHINE,
        "queue": optuna.load_study(study_name=queue_of(study), storage=storage),
        "storage": storage,
        "space": small_space(folder),
        "bench": bench or SimulatedBench(),
        "slo": SLO,
        "seed": 1,
        "directory": folder,
        "idle_s": 0.0,
    }
    return Worker(**{**given, **changes})


class SlowBench(SimulatedBench):
    """Takes a little real time; with `hang`, the first load never ends, and a file says that it began."""

    def __init__(self, folder: Path, *, hang: bool = False) -> None:
        super().__init__()
        self.folder, self.hang = folder, hang

    def load(self, config: ServingConfig) -> None:
        time.sleep(0.3)
        if self.hang:
            (self.folder / "hanging").touch()
            time.sleep(600)
        super().load(config)


def main(study: str, name: str, folder: str | os.PathLike[str], *how: str) -> None:
    folder = Path(folder)
    bench = SlowBench(folder, hang="hang" in how)
    url = os.environ["TRITUNE_STORAGE"]
    worker(folder, url, name=name, study=study, bench=bench, idle_s=120.0).run()
    close_all()


if __name__ == "__main__":
    main(*sys.argv[1:])
