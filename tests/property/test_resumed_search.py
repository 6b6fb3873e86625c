"""A search that is stopped and goes on, in virtual time."""

from pathlib import Path

import pytest
from simulated_bench import SimulatedBench
from spaces import two_core_space
from virtual_search import runner_on

from search.records.run_files import read_trials
from search.study.run import run_search
from search.trials.trial import Trial


def searched(folder: Path, until: int) -> list[Trial]:
    """Search, or go on in this folder, until there are so many trials or no more is worth it; return them."""
    runner = runner_on(
        SimulatedBench(), two_core_space(folder), folder, storage=None,
        stop=lambda: len(read_trials(folder)) >= until,
    )  # fmt: skip
    run_search(runner)
    return runner.store.trials


@pytest.mark.slow
def test_a_resumed_search_keeps_its_trials_and_measures_none_of_them_again(tmp_path: Path) -> None:
    first = searched(tmp_path, 1)
    found = searched(tmp_path, 100)
    assert len(first) == 1 < len(found)
    assert found[:1] == first
    assert len({trial.served for trial in found}) == len(found)
    assert [record.number for record in read_trials(tmp_path)] == list(range(len(found)))
