"""A machine whose speed goes up and down is told from the spread of what trials took, and costs the promise."""

import math
from dataclasses import replace

import pytest
from recommendations import trial

from search.records.trial import ReplayRecord
from search.study.drift import TYPICAL, SpeedVariation, speed_variation_of
from search.trials.trial import Trial


def took(slowdown: float, rate_per_s: float = 1000.0) -> Trial:
    replay = ReplayRecord(slowdown=slowdown, rate_per_s=rate_per_s, error=0.02)
    return trial(rate_at_limit_per_s=rate_per_s, replay=replay)


def test_a_steady_machine_costs_nothing() -> None:
    found = speed_variation_of([took(1.10), took(1.13), took(1.08)])
    assert found.excess == 0.0
    assert found.margin == 1.0
    assert found.text is None
    assert found.estimate(took(1.08)) == 1000.0


def test_two_trials_tell_nothing() -> None:
    assert speed_variation_of([took(1.0), took(2.0)]) == SpeedVariation()
    assert speed_variation_of([trial(replay=None)] * 5) == SpeedVariation()


def test_engines_on_a_gpu_tell_nothing_of_it() -> None:
    """1.16 to 1.51 on an H200 whose engine took the same on its own whenever it was asked."""

    def on_gpu(one: Trial) -> Trial:
        return one.changed(served=replace(one.served, engine=replace(one.served.engine, device="gpu")))

    assert speed_variation_of([on_gpu(took(factor)) for factor in (1.16, 1.51, 1.39)]) == SpeedVariation()


def test_the_fastest_moment_is_not_promised() -> None:
    trials = [took(factor) for factor in (1.26, 1.11, 1.23, 1.30)]
    found = speed_variation_of(trials)
    own = math.sqrt(found.spread**2 - TYPICAL**2)
    assert found.excess == pytest.approx(own)
    assert found.margin == pytest.approx(math.exp(-own))
    assert found.estimate(trials[1]) < 1000.0 < found.estimate(trials[3])
    assert found.text is not None
    assert "%" in found.text


def test_where_the_spread_is_all_the_machines_an_estimate_is_that_of_its_middle_speed() -> None:
    trials = [took(factor) for factor in (1.0, 2.0, 4.0)]
    found = speed_variation_of(trials)
    assert found.estimate(trials[0]) == pytest.approx(500.0, rel=0.02)
    assert found.estimate(trials[2]) == pytest.approx(2000.0, rel=0.02)


def test_what_was_not_replayed_counts_as_it_is() -> None:
    found = SpeedVariation(middle=0.2, spread=0.2)
    assert found.estimate(trial(rate_at_limit_per_s=70.0, replay=None)) == 70.0
