"""A search on a real PostgreSQL with worker processes, one of which is killed, and a database that goes away."""

import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import optuna
import pytest
import shared_studies
from postgresql import postgresql
from shared_studies import MACHINE, SLO, SlowBench, coordinator, task
from simulated_bench import SimulatedBench

from search.budget import Budget
from search.study import Search
from search.tasks import RECORD, OrderRecord
from search.why import WhyRecord

pytestmark = [pytest.mark.system, pytest.mark.long]
pytest.importorskip("psycopg", reason="the extra `postgresql` is not installed")

PROGRAM = Path(shared_studies.__file__)
STATES = optuna.trial.TrialState


@pytest.fixture(scope="module")
def cluster():
    with postgresql() as running:
        yield running


@pytest.fixture(autouse=True)
def leave_the_database():
    yield
    shared_studies.close_all()


@contextmanager
def workers(cluster, folder, study, names, *, hanging=()):
    """Worker processes by name; those that are `hanging` never finish their first trial."""
    environment = {**os.environ, "TRITUNE_STORAGE": cluster.url, "PYTHONPATH": os.pathsep.join(sys.path)}
    started = {}
    try:
        for name in names:
            words = [study, name, str(folder / name), *(["hang"] if name in hanging else [])]
            started[name] = subprocess.Popen([sys.executable, PROGRAM, *words], env=environment)
        yield started
    finally:
        for process in started.values():
            process.kill()
            process.wait(timeout=30)


def until(condition, seconds=120.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


def gathered(ledger, crew, count):
    """Keep what comes back until there are so many trials."""

    def enough():
        for trial in crew.gather():
            ledger.keep(trial)
        return len(ledger.trials) >= count

    until(enough)


class WaitsForOthers(SimulatedBench):
    """A bench in virtual time would be done before any worker has begun: this one lets them finish one trial."""

    def __init__(self, ledger):
        super().__init__()
        self.ledger = ledger

    def load(self, config):
        if self.ledger.away:
            until(lambda: any(RECORD in one.user_attrs for one in self.ledger.study.get_trials(deepcopy=False)))
        super().load(config)


def test_the_trial_of_a_worker_that_is_killed_is_measured_by_another(cluster, tmp_path):
    ledger, crew = coordinator(tmp_path / "run", cluster.url, study="killed")
    points = [knobs for knobs, _ in zip(ledger.space.points(), range(6), strict=False)]
    with workers(cluster, tmp_path, "killed", ["doomed"], hanging=["doomed"]) as doomed:
        for knobs in points:
            crew.offer(knobs, task())
        until((tmp_path / "doomed" / "hanging").exists)
        with workers(cluster, tmp_path, "killed", ["w1", "w2"]):
            doomed["doomed"].kill()  # SIGKILL
            gathered(ledger, crew, len(points))
            crew.close()
    measured = {ledger.space.config(knobs): 0 for knobs in points}
    for trial in ledger.trials:
        measured[trial.config] += 1
    assert set(measured.values()) == {1}
    assert {trial.worker for trial in ledger.trials} <= {"w1", "w2"}
    assert {trial.hardware for trial in ledger.trials} == {MACHINE}
    [lost] = [frozen for frozen in ledger.study.get_trials() if frozen.user_attrs.get("worker") == "doomed"
              and frozen.state == STATES.FAIL]  # fmt: skip
    again = [
        frozen for frozen in ledger.study.get_trials() if frozen.system_attrs.get("failed_trial") == lost.number
    ]
    assert [one.params for one in again] == [lost.params]


def test_nothing_finished_is_lost_while_the_database_is_away(cluster, tmp_path):
    ledger, crew = coordinator(tmp_path / "run", cluster.url, study="outage")
    points = [knobs for knobs, _ in zip(ledger.space.points(), range(8), strict=False)]
    with workers(cluster, tmp_path, "outage", ["w1", "w2"]):
        for knobs in points:
            crew.offer(knobs, task())
        gathered(ledger, crew, 1)
        cluster.stop()
        back = threading.Timer(4.0, cluster.start)
        back.start()
        try:
            mine = Search(ledger=ledger, bench=SlowBench(tmp_path), slo=SLO, budget=Budget(total_s=600.0), seed=1)
            fallback = [knobs for knobs in ledger.space.points() if knobs not in points]
            asked = ledger.ask_for(fallback, wanted=lambda _: True)
            mine.make(asked, mine.evaluated, WhyRecord(cause="landmark"))
            gathered(ledger, crew, len(points) + 1)
            crew.close()
        finally:
            back.join()
    by = [trial.worker for trial in ledger.trials]
    assert by.count(None) == 1
    assert len({trial.config for trial in ledger.trials}) == len(points) + 1
    finished = [frozen for frozen in ledger.study.get_trials() if frozen.state == STATES.COMPLETE]
    assert len(finished) == len([trial for trial in ledger.trials if trial.state == "complete"])


def test_a_search_with_workers_finds_what_it_finds_alone(cluster, tmp_path):
    alone, _ = coordinator(tmp_path / "alone", f"sqlite:///{tmp_path / 'alone.db'}", study="alone")
    common = {"slo": SLO, "budget": Budget(total_s=600.0), "seed": 1}
    Search(ledger=alone, bench=SimulatedBench(), **common).run()
    ledger, crew = coordinator(tmp_path / "run", cluster.url, study="together")
    crew.publish(
        OrderRecord(
            tritune_version="0",
            run="here",
            hardware=MACHINE,
            model_sha256="0" * 64,
            slo=SLO,
            seed=1,
            settings={},
        )
    )
    with workers(cluster, tmp_path, "together", ["w1", "w2"]) as processes:
        until(lambda: crew.room() == 4)
        Search(ledger=ledger, bench=WaitsForOthers(ledger), crew=crew, **common).run()
        crew.close()
        assert [process.wait(timeout=60) for process in processes.values()] == [0, 0]
    assert {trial.worker for trial in ledger.trials} - {None}
    assert ledger.best().rate_at_limit_per_s >= 0.95 * alone.best().rate_at_limit_per_s
    assert [trial.number for trial in ledger.trials] == list(range(len(ledger.trials)))
