"""Whoever reaches the database can write into a study: a worker neither crashes, nor hangs, nor obeys."""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import shared_studies
from shared_studies import close_all, coordinator, task, worker
from simulated_bench import SimulatedBench
from sqlalchemy import text

from loadgen.errors import BadInput
from model_repo.spec import ServingConfig
from search.simulator.service_times import ServiceCurve
from search.simulator.service_times_file import profile_text
from search.study.store import TrialStore
from search.study.tasks import PROFILE, TASK, WORKER_PREFIX
from search.workers.pool import AHEAD, MAX_WORKERS, StudyWorkerPool

pytestmark = pytest.mark.long

INF, NAN = float("inf"), float("nan")
NEGATIVE = -1.0


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of a study in which no worker is lost unless a test says so, however slow the machine is."""
    monkeypatch.setattr(shared_studies, "GRACE_S", 3600)
    yield f"sqlite:///{tmp_path / 'shared.db'}"
    close_all()


@pytest.fixture
def study(tmp_path: Path, url: str) -> tuple[TrialStore, StudyWorkerPool]:
    return coordinator(tmp_path / "run", url)


def predicted(**changes: float) -> dict[Any, Any]:
    prediction = {
        "rate_per_s": 20.0,
        "sd": 0.1,
        "simulated_per_s": 20.0,
        "rank": 1,
        "untried": 2,
        "to_beat_per_s": None,
        "service_times": {"batch_sizes": [1], "one_busy_ms": [1.0], "all_busy_ms": [1.0], "overhead_ms": 0.1},
    }
    return {"cause": "predicted", "prediction": {**prediction, **changes}}


BAD_TASKS = {
    "none": None,
    "a list": [],
    "text": "measure",
    "a rate without an end": {"best_per_s": INF},
    "no rate": {"best_per_s": NAN},
    "a huge rate": {"best_per_s": 1e12},
    "a negative rate": {"best_per_s": NEGATIVE},
    "a huge prediction": {"why": predicted(rate_per_s=1e12)},
    "a prediction without an end": {"why": predicted(simulated_per_s=INF)},
    "no error": {"why": predicted(sd=NAN)},
    "a budget without an end": {"budget_s": INF},
    "a negative budget": {"budget_s": NEGATIVE},
    "a time before the run": {"elapsed_s": NEGATIVE},
    "an unknown cause": {"why": {"cause": "me"}},
    "more than there is": {"command": "rm"},
}


def spoiled(changes: dict[str, Any] | str | list[Any] | None) -> Any:
    return {**task().model_dump(mode="json"), **changes} if isinstance(changes, dict) else changes


@pytest.mark.parametrize("changes", BAD_TASKS.values(), ids=BAD_TASKS)
def test_a_task_that_no_search_gives_is_left_alone_and_the_next_one_is_done(
    tmp_path: Path, url: str, study: Any, changes: dict[str, Any] | str | list[Any] | None
) -> None:
    store, pool = study
    first, second = islice(store.space.points(), 2)
    store.queue.open_at(first, store.space, waiting=True, attributes={TASK: spoiled(changes)})
    pool.offer(second, task())
    assert worker(tmp_path / "w1", url).run() == 1
    [trial] = pool.gather()
    assert trial.served == store.space.config(second)


BAD_POINTS = {
    "no knobs": lambda knobs: {},
    "one missing": lambda knobs: {name: value for name, value in knobs.items() if name != "engine"},
    "one more": lambda knobs: {**knobs, "command": "rm"},
    "another engine": lambda knobs: {**knobs, "engine": "theirs"},
    "a path": lambda knobs: {**knobs, "engine": "../../etc"},
    "many instances": lambda knobs: {**knobs, "instance_count": 10**9},
    "text for a number": lambda knobs: {**knobs, "instance_count": "1"},
    "true for one": lambda knobs: {**knobs, "instance_count": True},
    "a fraction": lambda knobs: {**knobs, "max_batch_size": 1.5},
    "negative": lambda knobs: {**knobs, "max_queue_delay_us": -1},
}


@pytest.mark.parametrize("spoil", BAD_POINTS.values(), ids=BAD_POINTS)
def test_a_point_outside_the_space_is_left_alone(
    tmp_path: Path, url: str, study: Any, spoil: Callable[[Any], dict[Any, Any]]
) -> None:
    store, pool = study
    first, second = islice(store.space.points(), 2)
    pool.offer(first, task())
    pool.offer(second, task())
    knobs = spoil(first)
    kind = "CategoricalDistribution"
    rows = [
        {"name": name, "choices": json.dumps({"name": kind, "attributes": {"choices": [value]}})}
        for name, value in knobs.items()
    ]
    with store.storage.direct.engine.begin() as connection:
        trial = connection.execute(text("SELECT min(trial_id) FROM trials")).scalar_one()
        connection.execute(text("DELETE FROM trial_params WHERE trial_id = :trial"), {"trial": trial})
        for row in rows:
            connection.execute(
                text(
                    "INSERT INTO trial_params (trial_id, param_name, param_value, distribution_json)"
                    " VALUES (:trial, :name, 0, :choices)"
                ),
                {"trial": trial, **row},
            )
    assert worker(tmp_path / "w1", url).run() == 1
    [trial] = pool.gather()
    assert trial.served == store.space.config(second)


CURVE = ServiceCurve(
    busy=1,
    sizes=(1.0, 2.0),
    seconds=(0.001, 0.002),
    handover_s=0.0,
    fit_error=0.0,
    overhead_s=0.001,
    noise=(1.0,),
)


def profile(knobs: Any, **changes: list[Any] | float) -> str:
    """The profile of that point as JSON, changed."""
    kind = (knobs["engine"], knobs["intra_op_threads"], bool(knobs.get("cuda_graphs", 0)))
    whole = json.loads(profile_text({kind: {knobs["instance_count"]: CURVE}}))
    whole["curves"][0] |= {"busy": knobs["instance_count"], **changes}
    return json.dumps(whole)


BAD_PROFILES = {
    "no text": lambda knobs: {"curves": []},
    "no JSON": lambda knobs: "curves",
    "nested deeply": lambda knobs: "[" * 200_000,
    "no times": lambda knobs: profile(knobs, sizes=[], seconds=[]),
    "fewer times than sizes": lambda knobs: profile(knobs, sizes=[1.0, 2.0, 3.0]),
    "sizes that do not ascend": lambda knobs: profile(knobs, sizes=[2.0, 2.0]),
    "no time at all": lambda knobs: profile(knobs, seconds=[0.0, 0.0]),
    "negative times": lambda knobs: profile(knobs, seconds=[-1.0, 1.0]),
    "times that fall below zero": lambda knobs: profile(knobs, seconds=[1.0, 1e-9]),
    "times without an end": lambda knobs: profile(knobs, seconds=[INF, INF]),
    "times that are none": lambda knobs: profile(knobs, seconds=[NAN, NAN]),
    "no noise": lambda knobs: profile(knobs, noise=[]),
    "noise without an end": lambda knobs: profile(knobs, noise=[INF]),
    "negative overhead": lambda knobs: profile(knobs, overhead_s=-INF),
    "larger ones that are none": lambda knobs: profile(knobs, larger=[{}]),
}


@pytest.mark.parametrize("spoil", BAD_PROFILES.values(), ids=BAD_PROFILES)
def test_a_profile_that_no_search_measures_is_not_used(
    tmp_path: Path, url: str, study: Any, spoil: Callable[[Any], Any]
) -> None:
    store, pool = study
    knobs = next(store.space.points())
    store.study.set_user_attr(PROFILE, spoil(knobs))
    pool.offer(knobs, task(why=predicted()))
    assert worker(tmp_path / "w1", url).run() == 1
    [trial] = pool.gather()
    assert trial.state in ("complete", "infeasible")


def test_a_profile_as_searches_measure_it_is_used(tmp_path: Path, url: str, study: Any) -> None:
    store, _ = study
    knobs = next(store.space.points())
    store.study.set_user_attr(PROFILE, profile(knobs))
    assert worker(tmp_path / "w1", url)._simulated(store.space.config(knobs)) is not None


class Meddling(SimulatedBench):
    """While it measures, somebody changes the database."""

    def __init__(self, store: Any, change: str) -> None:
        super().__init__()
        self.store, self.change = store, change

    def load(self, config: ServingConfig) -> None:
        with self.store.storage.direct.engine.begin() as connection:
            connection.execute(text(self.change))
        super().load(config)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE study_user_attributes SET value_json = '{'",
        "UPDATE trial_user_attributes SET value_json = '{'",
        'UPDATE trial_params SET distribution_json = \'{"name": "Theirs", "attributes": {}}\'',
        "UPDATE trial_params SET param_value = 1e9",
        "DELETE FROM trials",
        "DELETE FROM studies",
    ],
)
def test_a_database_that_is_garbled_meanwhile_ends_the_worker_in_two_lines_at_most(
    tmp_path: Path, url: str, study: Any, change: str
) -> None:
    store, pool = study
    for knobs in islice(store.space.points(), 3):
        pool.offer(knobs, task())
    mine = worker(tmp_path / "w1", url, bench=Meddling(store, change))
    with suppress(BadInput):  # any other exception would be a traceback
        mine.run()


def test_names_of_workers_are_not_believed_without_end(study: Any) -> None:
    store, pool = study
    for number in range(MAX_WORKERS + 50):
        store.study.set_user_attr(f"{WORKER_PREFIX}{number}", "theirs")
    assert pool.room() == AHEAD * MAX_WORKERS
