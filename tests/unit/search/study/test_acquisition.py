"""Which predictions are worth the seconds of a trial."""

import math
from pathlib import Path

import pytest
from certifications import bench, profile, tried
from spaces import two_core_space

from search.simulator.surrogate import Predicted
from search.space import knobs_of
from search.study.acquisition import PATIENCE_S, rank_candidates
from search.study.belief import Belief
from search.study.store import TrialStore, open_store
from search.trials.bench import ObservedBench


def of_best(one: Predicted, belief: Belief, store: TrialStore) -> float:
    return one.rate_per_s / max(map(belief.usual_per_s, store.trials))


def known(folder: Path, *batches: int) -> tuple[Belief, TrialStore]:
    """Return what is known after trials of these largest batches; any batch takes the same time."""
    trials = [tried(folder, batch, number, 100.0 * batch) for number, batch in enumerate(batches)]
    surrogate = profile(folder, *trials)
    space = two_core_space(folder)
    surrogate.simulate(list(space.points()))
    store = open_store(space, folder, storage="sqlite://", seed=3)
    store.trials.extend(trials)
    for trial in trials:
        surrogate.update(knobs_of(trial.served), trial.rate_at_limit_per_s or 0.0)
    return Belief(surrogate=surrogate, bench=ObservedBench(bench())), store


def test_larger_batches_of_which_more_is_expected_come_first_and_smaller_ones_not_at_all(tmp_path: Path) -> None:
    belief, store = known(tmp_path, 16, 12)
    found = list(rank_candidates(belief.surrogate, belief, store))
    assert [one.knobs["max_batch_size"] for one in found][:1] == [64]
    assert not any(int(one.knobs["max_batch_size"]) < 12 for one in found)
    shares = [of_best(one, belief, store) for one in found]
    assert shares[0] == max(shares)


@pytest.mark.parametrize("seconds", [0.0, 60.0, 600.0])
def test_the_longer_it_takes_the_more_has_to_be_expected(seconds: float, tmp_path: Path) -> None:
    belief, store = known(tmp_path, 16, 12)
    found = list(rank_candidates(belief.surrogate, belief, store, seconds))
    every = list(rank_candidates(belief.surrogate, belief, store))
    least = seconds / PATIENCE_S
    sure = [one for one in every if math.log(of_best(one, belief, store)) > least + 3 * one.sd]
    assert sure
    assert all(one in found for one in sure)
    assert not any(math.log(of_best(one, belief, store)) + 3 * one.sd < least for one in found)


def test_a_machine_without_slow_phases_has_no_bad_luck(tmp_path: Path) -> None:
    belief, store = known(tmp_path, 16, 12)
    assert not list(rank_candidates(belief.surrogate, belief, store, by_luck=True))
