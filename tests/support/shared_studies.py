"""A small space, and the two sides of a shared study on simulated benches; run as a program, one more worker.

python shared_studies.py STUDY NAME FOLDER [hang]   (the storage's URL is in TRITUNE_STORAGE)
"""

import os
import sys
import time
from pathlib import Path

import optuna
from simulated_bench import SimulatedBench
from spaces import two_core_space

from search.crew import SharedStudy
from search.ledger import open_ledger
from search.records import Slo
from search.storage import open_storage
from search.tasks import TaskRecord
from search.why import WhyRecord
from search.working import Worker

SLO = Slo(limit_ms=50.0)
MACHINE = "a machine of the test"
HEARTBEAT_S, GRACE_S = 1, 5
OPENED = []


def close_all():
    """Leave every database that was opened here."""
    while OPENED:
        OPENED.pop().close()


def small_space(folder):
    folder.mkdir(parents=True, exist_ok=True)
    return two_core_space(folder, limit_ms=SLO.limit_ms)


def coordinator(folder, url, study="shared"):
    """A ledger and its crew; heartbeats are shorter than usual."""
    space = small_space(folder)
    ledger = open_ledger(space, folder, storage=url, seed=1, study=study, hardware=MACHINE)
    ledger.storage.direct.heartbeat_interval, ledger.storage.direct.grace_period = HEARTBEAT_S, GRACE_S
    OPENED.append(ledger.storage)
    return ledger, SharedStudy(ledger=ledger)


def task(**changes):
    return TaskRecord(**{"why": WhyRecord(cause="landmark"), "elapsed_s": 0.0, "budget_s": 600.0, **changes})


def worker(folder, url, *, name="w1", study="shared", bench=None, **changes):
    storage = open_storage(url, heartbeat_s=HEARTBEAT_S, grace_s=GRACE_S)
    OPENED.append(storage)
    given = {
        "name": name,
        "hardware": MACHINE,
        "study": optuna.load_study(study_name=study, storage=storage.patient),
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

    def __init__(self, folder, *, hang=False):
        super().__init__()
        self.folder, self.hang = folder, hang

    def load(self, config):
        time.sleep(0.3)
        if self.hang:
            (self.folder / "hanging").touch()
            time.sleep(600)
        super().load(config)


def main(study, name, folder, *how):
    folder = Path(folder)
    bench = SlowBench(folder, hang="hang" in how)
    url = os.environ["TRITUNE_STORAGE"]
    worker(folder, url, name=name, study=study, bench=bench, idle_s=120.0).run()
    close_all()


if __name__ == "__main__":
    main(*sys.argv[1:])
