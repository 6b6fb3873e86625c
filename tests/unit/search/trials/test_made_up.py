"""A short run beside a neighbour gets longer once, tells so, and gets no longer than that."""

from pathlib import Path
from typing import Any

import pytest
from simulated_bench import BudgetOfLoad, SimulatedBench
from spaces import two_core_space
from virtual_search import SLO

from search.certification.certify import certify_best
from search.study.run import run_search
from search.study.store import open_store
from search.study.trial_runner import TrialRunner
from search.trials import events
from search.trials.budget import MOST_EXTENSION_SHARE

TOTAL_S = 24.0


def run_load(folder: Path, *, cores: float) -> tuple[BudgetOfLoad, list[events.BudgetExtended], SimulatedBench]:
    bench = SimulatedBench(taken_cores=lambda load_s: cores)
    budget = BudgetOfLoad(total_s=TOTAL_S, spent=bench.spent)
    seen: list[events.Event] = []
    store = open_store(two_core_space(folder), folder, storage="sqlite://", seed=3)
    common: dict[str, Any] = {"slo": SLO, "budget": budget, "seed": 3, "on_event": seen.append}
    run_search(TrialRunner(store=store, bench=bench, **common))
    certify_best(store, bench, **common)
    return budget, [event for event in seen if isinstance(event, events.BudgetExtended)], bench


def test_what_a_neighbour_took_is_made_up_for_once(tmp_path: Path) -> None:
    budget, [extended], bench = run_load(tmp_path, cores=0.9)
    assert 0 < extended.by_s <= MOST_EXTENSION_SHARE * TOTAL_S
    assert extended.total_s == budget.total_s == pytest.approx(TOTAL_S + extended.by_s)
    assert budget.elapsed_s() > TOTAL_S  # the time is used
    assert bench.spent.load_s < budget.total_s + 5.0


def test_a_quiet_run_keeps_to_its_budget(tmp_path: Path) -> None:
    budget, extended, _ = run_load(tmp_path, cores=0.0)
    assert extended == []
    assert budget.total_s == TOTAL_S
