"""A search that is stopped and goes on, in virtual time."""

from pathlib import Path

import pytest
from simulated_bench import BudgetOfLoad, SimulatedBench
from spaces import two_core_space
from virtual_search import SLO

from search.records.run_files import read_trials
from search.study.run import run_search
from search.study.store import open_store
from search.study.trial_runner import TrialRunner
from search.trials.trial import Trial


def searched(folder: Path, until: int) -> list[Trial]:
    """Search, or go on in this folder, until there are so many trials or no more is worth it; return them."""
    store, bench = open_store(two_core_space(folder), folder, storage=None, seed=3), SimulatedBench()
    budget = BudgetOfLoad(total_s=600.0, spent=bench.spent)
    runner = TrialRunner(
        store=store, bench=bench, slo=SLO, budget=budget, seed=3, stop=lambda: len(store.trials) >= until
    )
    run_search(runner)
    return store.trials


@pytest.mark.slow
def test_a_resumed_search_keeps_its_trials_and_measures_none_of_them_again(tmp_path: Path) -> None:
    first = searched(tmp_path, 1)
    found = searched(tmp_path, 100)
    assert len(first) == 1 < len(found)
    assert found[:1] == first
    assert len({trial.served for trial in found}) == len(found)
    assert [record.number for record in read_trials(tmp_path)] == list(range(len(found)))
