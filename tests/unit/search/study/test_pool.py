"""What is asked of workers comes back, whoever measures it, and whatever happens to them meanwhile."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import optuna
import pytest
import shared_studies
from shared_studies import MACHINE, close_all, coordinator, task, worker
from sqlalchemy import text

from search.records.run_files import TRIALS_FILE, whole_lines
from search.space import knobs_of
from search.study.patient_storage import PatientStorage
from search.study.pool import TASK, WorkerPool
from search.study.store import TrialStore

pytestmark = pytest.mark.slow

STATES = optuna.trial.TrialState


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of a study in which no worker is lost unless a test says so, however slow the machine is."""
    monkeypatch.setattr(shared_studies, "GRACE_S", 3600)
    yield f"sqlite:///{tmp_path / 'shared.db'}"
    close_all()


def points_of(store: TrialStore, count: int) -> list[Any]:
    return list(islice(store.space.points(), count))


def offered(store: TrialStore, pool: WorkerPool, count: int) -> Any:
    points = points_of(store, count)
    for knobs in points:
        pool.offer(knobs, task())
    return points


def age_heartbeats(store: TrialStore) -> None:
    """As if the last sign of life had been long ago."""
    with store.storage.engine.begin() as connection:
        connection.execute(text("UPDATE trial_heartbeats SET heartbeat = '2000-01-01 00:00:00'"))


def claimed_and_lost(tmp_path: Path, url: str, name: str = "lost") -> Any:
    """A worker that claims a point and is heard of no more."""
    one = worker(tmp_path / name, url, name=name)
    frozen = one._claim()
    assert frozen is not None
    return frozen


def test_points_come_back_with_who_measured_them_and_on_what(tmp_path: Path, url: str) -> None:
    store, pool = coordinator(tmp_path / "run", url)
    points = offered(store, pool, 3)
    assert worker(tmp_path / "w1", url).run() == 3
    trials = [store.record(trial) for trial in pool.gather()]
    assert [knobs_of(trial.served) for trial in trials] == points
    assert [trial.number for trial in trials] == [0, 1, 2]
    assert {(trial.worker, trial.hardware) for trial in trials} == {("w1", MACHINE)}
    assert all(trial.rate_at_limit_per_s > 0 for trial in trials if trial.state == "complete")
    assert store.trials == trials
    assert len(list(whole_lines(tmp_path / "w1" / TRIALS_FILE))) == 3, "on its own disk as well"
    told = store.study.get_trials()
    assert all(one.state in (STATES.COMPLETE, STATES.PRUNED) and one.value > 0 for one in told)
    assert {(one.user_attrs["worker"], one.user_attrs["hardware"]) for one in told} == {("w1", MACHINE)}
    assert pool.gather() == []
    assert not pool.wait()


def test_a_worker_claims_only_what_its_machine_can(tmp_path: Path, url: str) -> None:
    store, pool = coordinator(tmp_path / "run", url)
    offered(store, pool, 1)
    other = worker(tmp_path / "w1", url)
    half = replace(other.space.engines[0], precision="fp16")
    other.space = replace(other.space, engines=(half,))
    assert other.run() == 0
    assert pool.queue.get_trials()[0].state == STATES.WAITING


@pytest.mark.parametrize(
    "change", [{"engine": "../../etc"}, {"instance_count": 10**9}, {"command": "rm"}], ids=str
)
def test_a_point_outside_the_space_is_left_alone(tmp_path: Path, url: str, change: dict[str, Any]) -> None:
    store, pool = coordinator(tmp_path / "run", url)
    knobs = {**points_of(store, 1)[0], **change}
    axes: dict[str, Any] = {
        name: optuna.distributions.CategoricalDistribution([value]) for name, value in knobs.items()
    }
    asked = {TASK: task().model_dump(mode="json")}
    pool.queue.add_trial(
        optuna.create_trial(state=STATES.WAITING, params=knobs, distributions=axes, user_attrs=asked)
    )
    assert worker(tmp_path / "w1", url).run() == 0


def test_points_that_are_out_are_not_asked_for_here(tmp_path: Path, url: str) -> None:
    store, pool = coordinator(tmp_path / "run", url)
    points = offered(store, pool, 2)
    assert store.ask_for(points, wanted=lambda _: True) is None
    assert not store.untried(points[0])


def test_what_nobody_begins_is_taken_back_and_measured_here(tmp_path: Path, url: str) -> None:
    store, pool = coordinator(tmp_path / "run", url)
    points = offered(store, pool, 1)
    assert pool.gather() == []
    assert pool.wait()
    assert store.ask_for(points, wanted=lambda _: True) is not None
    assert worker(tmp_path / "w1", url).run() == 0


def test_a_point_is_measured_although_the_coordinator_was_killed_while_it_took_it_back(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any, **__: Any) -> None:
        raise SystemExit

    store, pool = coordinator(tmp_path / "run", url)
    [point] = offered(store, pool, 1)
    assert pool.gather() == []
    with monkeypatch.context() as dies:
        dies.setattr(PatientStorage, "set_trial_state_values", killed)
        with pytest.raises(SystemExit):
            pool.wait()
    age_heartbeats(store)
    again, pool = coordinator(tmp_path / "run", url)
    assert pool.gather() == []
    assert not again.untried(point)
    assert worker(tmp_path / "w1", url).run() == 1
    [trial] = pool.gather()
    assert knobs_of(trial.served) == point
    again.record(trial)
    assert pool.gather() == []
    assert not pool.wait()


def test_the_sampler_does_not_take_what_is_queued(tmp_path: Path, url: str) -> None:
    store, pool = coordinator(tmp_path / "run", url)
    offered(store, pool, 1)
    assert store.ask_sampler(wanted=lambda _: True) is not None
    assert worker(tmp_path / "w1", url).run() == 1


def test_the_trial_of_a_lost_worker_is_measured_by_another(tmp_path: Path, url: str) -> None:
    store, pool = coordinator(tmp_path / "run", url)
    [point] = offered(store, pool, 1)
    claimed_and_lost(tmp_path, url)
    assert pool.gather() == []
    assert worker(tmp_path / "w2", url, name="w2").run() == 0  # it is taken, as far as anybody knows
    age_heartbeats(store)
    assert pool.gather() == []
    assert not store.untried(point)
    assert worker(tmp_path / "w2", url, name="w2").run() == 1
    [trial] = pool.gather()
    assert (trial.worker, knobs_of(trial.served)) == ("w2", point)


def test_a_trial_that_loses_every_worker_is_given_up(tmp_path: Path, url: str) -> None:
    store, pool = coordinator(tmp_path / "run", url)
    [point] = offered(store, pool, 1)
    found = []
    for name in ("first", "second", "third"):
        claimed_and_lost(tmp_path, url, name)
        age_heartbeats(store)
        found += pool.gather()
    [trial] = found
    assert trial.state == "failed"
    assert "lost" in trial.reason
    store.record(trial)
    assert not store.untried(point)


def test_a_worker_that_was_thought_lost_changes_nothing_when_it_comes_back(tmp_path: Path, url: str) -> None:
    store, pool = coordinator(tmp_path / "run", url)
    offered(store, pool, 1)
    slow = worker(tmp_path / "slow", url, name="slow")
    frozen = slow._claim()
    age_heartbeats(store)
    pool.gather()
    worker(tmp_path / "w2", url, name="w2").run()
    slow._measure(frozen)
    assert [trial.worker for trial in pool.gather()] == ["w2"]


def test_what_a_worker_finished_counts_although_it_was_thought_lost(tmp_path: Path, url: str) -> None:
    """As after an outage of the database: its heartbeats could not arrive either."""
    store, pool = coordinator(tmp_path / "run", url)
    [point] = offered(store, pool, 1)
    cut_off = worker(tmp_path / "w1", url)
    frozen = cut_off._claim()
    age_heartbeats(store)
    assert pool.gather() == []
    cut_off._measure(frozen)
    [trial] = pool.gather()
    assert (trial.worker, knobs_of(trial.served)) == ("w1", point)
    store.record(trial)
    assert worker(tmp_path / "w2", url, name="w2").run() == 0
    assert pool.gather() == []
    assert not pool.wait()


def test_a_trial_that_two_workers_measured_counts_once(tmp_path: Path, url: str) -> None:
    store, pool = coordinator(tmp_path / "run", url)
    offered(store, pool, 1)
    first, second = worker(tmp_path / "w1", url), worker(tmp_path / "w2", url, name="w2")
    one = first._claim()
    age_heartbeats(store)
    pool.gather()
    other = second._claim()
    first._measure(one)
    second._measure(other)
    assert len([store.record(trial) for trial in pool.gather()]) == 1
    assert pool.gather() == []


def test_the_trial_of_a_worker_that_is_stopped_is_measured_by_another(tmp_path: Path, url: str) -> None:
    store, pool = coordinator(tmp_path / "run", url)
    offered(store, pool, 1)
    stops = iter([False, *[True] * 1000])
    assert worker(tmp_path / "w1", url, stop=lambda: next(stops)).run() == 0
    age_heartbeats(store)
    pool.gather()
    assert worker(tmp_path / "w2", url, name="w2").run() == 1
    assert [trial.worker for trial in pool.gather()] == ["w2"]


def test_there_is_room_for_two_points_a_worker(tmp_path: Path, url: str) -> None:
    store, pool = coordinator(tmp_path / "run", url)
    assert pool.room() == 0
    for name in ("w1", "w2"):
        pool.queue.set_user_attr(f"worker {name}", MACHINE)
    assert pool.room() == 4
    offered(store, pool, 3)
    assert pool.room() == 1
    pool.queue.set_user_attr("worker w2", None)
    assert pool.room() == 0


def test_closing_sends_workers_home_and_withdraws_the_queue(tmp_path: Path, url: str) -> None:
    store, pool = coordinator(tmp_path / "run", url)
    offered(store, pool, 1)
    pool.gather()
    pool.close()
    notes: list[Any] = []
    assert worker(tmp_path / "w1", url, on_event=notes.append).run() == 0
    assert notes == [], "it does not leave for want of tasks"
    assert pool.gather() == []


def test_what_workers_finish_while_the_coordinator_is_dead_is_there_when_it_goes_on(
    tmp_path: Path, url: str
) -> None:
    store, pool = coordinator(tmp_path / "run", url)
    offered(store, pool, 2)
    worker(tmp_path / "w1", url).run()
    again, pool = coordinator(tmp_path / "run", url)
    assert len([again.record(trial) for trial in pool.gather()]) == 2
    third, pool = coordinator(tmp_path / "run", url)
    assert len(third.trials) == 2
    assert pool.gather() == []
    assert [frozen.user_attrs["trial"] for frozen in third.study.get_trials()] == [0, 1]
