"""A search that cannot measure ends within a minute of load, and reports why."""

from pathlib import Path
from typing import Any

import pytest
from simulated_bench import SimulatedBench
from spaces import two_core_space
from virtual_search import SLO, runner_on

from search.study.run import run_search
from search.study.store import TrialStore
from search.study.trial_runner import WHAT_WOULD_HELP, CannotMeasure, SearchImpossible

pytestmark = pytest.mark.slow


def searched(folder: Path, bench: SimulatedBench, **options: Any) -> TrialStore:
    runner = runner_on(bench, two_core_space(folder), folder, **options)
    run_search(runner)
    return runner.store


def test_a_client_that_is_late_in_every_run_ends_the_search(tmp_path: Path) -> None:
    bench = SimulatedBench(late=lambda config: True)
    with pytest.raises(CannotMeasure) as ended:
        searched(tmp_path, bench)
    assert ended.value.exit_code == 98
    assert "the client sent late" in ended.value.what
    assert ended.value.fix == WHAT_WOULD_HELP
    assert 20.0 <= bench.spent.load_s < 60.0


def test_despite_noise_it_goes_on_until_every_trial_failed(tmp_path: Path) -> None:
    with pytest.raises(SearchImpossible):
        searched(tmp_path, SimulatedBench(late=lambda config: True), despite_noise=True)


def too_slow(config: Any, size: int) -> float:
    return 0.2


def test_contention_in_which_no_rate_met_the_slo_ends_the_search(tmp_path: Path) -> None:
    bench = SimulatedBench(service_s=too_slow, taken_cores=lambda load_s: 0.9)
    with pytest.raises(CannotMeasure) as ended:
        searched(tmp_path, bench)
    assert SLO.text in ended.value.what
    assert bench.spent.contention.text in ended.value.what
    assert bench.spent.load_s < 60.0


def test_contention_that_leaves_a_rate_does_not_end_the_search(tmp_path: Path) -> None:
    bench = SimulatedBench(taken_cores=lambda load_s: 0.9)
    assert searched(tmp_path, bench, stop=lambda: len(bench.loaded) >= 8).best() is not None


def slow(config: Any, size: int) -> float:
    return 0.008 + 0.008 * size


def test_others_that_took_most_of_the_machine_end_the_search_whatever_it_found(tmp_path: Path) -> None:
    bench = SimulatedBench(service_s=slow, taken_cores=lambda load_s: 1.8)
    with pytest.raises(CannotMeasure) as ended:
        searched(tmp_path, bench)
    assert bench.spent.contention.text in ended.value.what
    assert 20.0 <= bench.spent.load_s < 60.0
    (tmp_path / "despite").mkdir()
    noisy = SimulatedBench(service_s=slow, taken_cores=lambda load_s: 1.8)
    enough = {"despite_noise": True, "stop": lambda: len(noisy.loaded) >= 8}
    assert searched(tmp_path / "despite", noisy, **enough).best() is not None
