"""A search on a real PostgreSQL with worker processes, one of which is killed, and a database that goes away."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import pytest
import shared_studies
from postgresql import Cluster, postgresql
from shared_studies import MACHINE, SLO, SlowBench, coordinator, task
from simulated_bench import SimulatedBench
from waiting import wait_until

from model_repo.spec import ServingConfig
from search.records.trial import WhyRecord
from search.study.pool import RECORD, WorkerPool
from search.study.run import run_search
from search.study.store import TrialStore
from search.study.trial_runner import TrialRunner
from search.trials.capacity_trial import run_capacity_or_rate_trial
from search.trials.context import Budget

pytestmark = pytest.mark.system
pytest.importorskip("psycopg", reason="the extra `postgresql` is not installed")

PROGRAM = Path(shared_studies.__file__)
STATES = optuna.trial.TrialState


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with postgresql() as running:
        yield running


@pytest.fixture(autouse=True)
def leave_the_database() -> Iterator[None]:
    yield
    shared_studies.close_all()


@contextmanager
def workers(
    cluster: Cluster, folder: Path, study: str, names: list[Any], *, hanging: list[Any] | tuple[()] = ()
) -> Iterator[dict[Any, subprocess.Popen[bytes]]]:
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
            process.wait(timeout=240)


def collect_finished(store: TrialStore, pool: WorkerPool, count: int) -> None:
    """Keep what comes back until there are so many trials."""

    def enough() -> bool:
        for trial in pool.gather():
            store.record(trial)
        return len(store.trials) >= count

    wait_until(enough)


class WaitsForOthers(SimulatedBench):
    """A bench in virtual time would be done before any worker has begun: this one lets them finish one trial."""

    def __init__(self, pool: WorkerPool) -> None:
        super().__init__()
        self.pool = pool

    def load(self, config: ServingConfig) -> None:
        if self.pool.store.away:
            wait_until(lambda: any(RECORD in one.user_attrs for one in self.pool.queue.get_trials(deepcopy=False)))
        super().load(config)


def test_the_trial_of_a_worker_that_is_killed_is_measured_by_another(cluster: Cluster, tmp_path: Path) -> None:
    store, pool = coordinator(tmp_path / "run", cluster.url, study="killed")
    points = [knobs for knobs, _ in zip(store.space.points(), range(6), strict=False)]
    with workers(cluster, tmp_path, "killed", ["doomed"], hanging=["doomed"]) as doomed:
        for knobs in points:
            pool.offer(knobs, task())
        wait_until((tmp_path / "doomed" / "hanging").exists)
        with workers(cluster, tmp_path, "killed", ["w1", "w2"]):
            doomed["doomed"].kill()  # SIGKILL
            collect_finished(store, pool, len(points))
            pool.close()
    measured = {store.space.config(knobs): 0 for knobs in points}
    for trial in store.trials:
        measured[trial.served] += 1
    assert set(measured.values()) == {1}
    assert {trial.worker for trial in store.trials} <= {"w1", "w2"}
    assert {trial.hardware for trial in store.trials} == {MACHINE}
    [lost] = [frozen for frozen in pool.queue.get_trials() if frozen.state == STATES.FAIL]
    again = [
        frozen
        for frozen in pool.queue.get_trials()
        if frozen.system_attrs.get("failed_trial") == lost.number and frozen.state == STATES.PRUNED
    ]
    assert [one.params for one in again] == [lost.params]


@pytest.mark.long
def test_nothing_finished_is_lost_while_the_database_is_away(cluster: Cluster, tmp_path: Path) -> None:
    store, pool = coordinator(tmp_path / "run", cluster.url, study="outage")
    points = [knobs for knobs, _ in zip(store.space.points(), range(8), strict=False)]
    with workers(cluster, tmp_path, "outage", ["w1", "w2"]):
        for knobs in points:
            pool.offer(knobs, task())
        collect_finished(store, pool, 1)
        # A worker that starts while the database is away says so and ends: both have to be there first.
        wait_until(lambda: {"worker w1", "worker w2"} <= pool.queue.user_attrs.keys())
        cluster.stop()
        back = threading.Timer(4.0, cluster.start)
        back.start()
        try:
            mine = TrialRunner(
                store=store, bench=SlowBench(tmp_path), slo=SLO, budget=Budget(total_s=600.0), seed=1
            )
            fallback = [knobs for knobs in store.space.points() if knobs not in points]
            asked = store.ask_for(fallback, wanted=lambda _: True)
            mine.run_trial(asked, partial(run_capacity_or_rate_trial, mine), WhyRecord(cause="landmark"))
            collect_finished(store, pool, len(points) + 1)
            pool.close()
        finally:
            back.join()
    by = [trial.worker for trial in store.trials]
    assert by.count(None) == 1
    assert len({trial.served for trial in store.trials}) == len(points) + 1
    finished = [frozen for frozen in store.study.get_trials() if frozen.state == STATES.COMPLETE]
    assert len(finished) == len([trial for trial in store.trials if trial.state == "complete"])


@pytest.mark.long
def test_a_search_with_workers_finds_what_it_finds_alone(cluster: Cluster, tmp_path: Path) -> None:
    alone, _ = coordinator(tmp_path / "alone", f"sqlite:///{tmp_path / 'alone.db'}", study="alone")
    common: dict[str, Any] = {"slo": SLO, "budget": Budget(total_s=600.0), "seed": 1}
    run_search(TrialRunner(store=alone, bench=SimulatedBench(), **common))
    store, pool = coordinator(tmp_path / "run", cluster.url, study="together")
    pool.publish({})
    with workers(cluster, tmp_path, "together", ["w1", "w2"]) as processes:
        wait_until(lambda: pool.room() == 4)
        run_search(TrialRunner(store=store, bench=WaitsForOthers(pool), pool=pool, **common))
        pool.close()
        assert [process.wait(timeout=240) for process in processes.values()] == [0, 0]
    assert {trial.worker for trial in store.trials} - {None}
    assert store.best().rate_at_limit_per_s >= 0.95 * alone.best().rate_at_limit_per_s
    assert [trial.number for trial in store.trials] == list(range(len(store.trials)))
