"""What a user's queue policy costs: load runs with it and without, at one rate, with the same arrivals."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from certifications import DEFAULT, SLO, NotedBench, bench, tried
from simulated_bench import BudgetOfLoad
from spaces import two_core_space

from model_repo.spec import Engine, ServingConfig
from search.certification.queue_policy import SHARE_OF_BUDGET, cost_of_policy
from search.records.recommendation import QueuePolicyRecord
from search.study.store import open_store
from search.study.trial_runner import TrialRunner
from search.trials import events


def plain(folder: Path) -> Engine:
    return replace(two_core_space(folder).engines[0], precision="without")


def service_s(config: ServingConfig, size: int) -> float:
    return 0.01 if config.engine.precision == "without" else 0.02


def compared(
    folder: Path,
    given: NotedBench,
    *,
    total_s: float = 300.0,
    capacity_per_s: float | None = 300.0,
    loading_s: float = 1.0,
    **changes: Any,
) -> tuple[QueuePolicyRecord | None, list[events.Event]]:
    seen: list[events.Event] = []
    own = tried(folder, DEFAULT, 0, capacity_per_s, loading_s=loading_s)
    store = open_store(two_core_space(folder), folder, storage="sqlite://", seed=7)
    budget = BudgetOfLoad(total_s=total_s, spent=given.spent)
    known: dict[str, Any] = {"slo": SLO, "budget": budget, "seed": 7, "on_event": seen.append, **changes}
    return cost_of_policy(TrialRunner(store=store, bench=given, **known), own, plain(folder)), seen


def test_both_are_measured_in_turn_at_half_the_capacity(tmp_path: Path) -> None:
    given = bench(service_s=service_s)
    record, seen = compared(tmp_path, given)
    assert record is not None
    assert [config.engine.precision for config in given.loaded] == ["fp32", "without"] * 2
    assert len({replace(config, engine=plain(tmp_path)) for config in given.loaded}) == 1
    assert {run.rate_per_s for run in given.runs} == {record.rate_per_s} == {150.0}
    first, second, third, fourth = (run.seed for run in given.runs)
    assert first == second != third == fourth
    for kept, without in zip(record.with_it, record.without, strict=True):
        assert kept.seed == without.seed
        assert kept.latency_ms is not None
        assert without.latency_ms is not None
        assert kept.latency_ms > 1.3 * without.latency_ms
    assert given.spent.load_s + given.spent.loading_s <= SHARE_OF_BUDGET * 300.0
    (note,) = seen
    assert isinstance(note, events.Note)
    assert note.text == record.text


@pytest.mark.parametrize(
    "changes",
    [{"total_s": 150.0}, {"loading_s": 10.0}, {"capacity_per_s": 0.0}, {"capacity_per_s": None}],
    ids=["short", "slow to load", "no rate", "failed"],
)
def test_nothing_is_sent_without_time_or_a_rate(tmp_path: Path, changes: dict[str, Any]) -> None:
    given = bench()
    record, seen = compared(tmp_path, given, **changes)
    assert record is None
    assert given.loaded == []
    assert len(seen) == 1


def test_a_server_that_fails_ends_the_comparison(tmp_path: Path) -> None:
    given = bench(faults=lambda config: "no such device" if config.engine.precision == "without" else None)
    record, seen = compared(tmp_path, given)
    assert record is None
    assert [isinstance(event, events.Note) and "no such device" in event.text for event in seen] == [True]


def test_a_user_who_asks_to_finish_does_not_wait_for_it(tmp_path: Path) -> None:
    given = bench()
    record, seen = compared(tmp_path, given, stop=lambda: len(given.loaded) > 1)
    assert record is None
    assert len(given.loaded) == 2
    assert seen == []


def test_runs_that_are_not_trusted_are_not_shown(tmp_path: Path) -> None:
    record, _ = compared(tmp_path, bench(late_runs={1, 3}))
    assert record is not None
    assert "unknown without" in record.text
    assert not any(run.trusted for run in record.without)
