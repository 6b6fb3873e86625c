"""What certification does about slow phases of the machine that the search did not know of."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from certifications import EXECUTION_S, PER_S, SLO, Ended, ended, profile, tried
from unsteady_machine import Speed, UnsteadyBench

from loadgen.spec.limits import LatencyLimit
from model_repo.spec import ServingConfig
from search.records.certificate import CertificateRecord
from search.records.confirmations import read_confirmations
from search.simulator.service_times_file import write_curves
from search.space import knobs_of
from search.study.storage import StorageFailed
from search.trials import events

EASY = SLO.model_copy(update={"limits": (LatencyLimit(limit_ms=50.0, quantile=0.9),)})
"""It takes few requests to confirm."""

STEADY, SOMETIMES_SLOW = [1.0] * 10, [1.0] * 4 + [0.6] + [1.0] * 5
"""The speed of the machine in each of 10 seconds."""

TWO = 2
"""The instances of a kind that has no trial; one instance, which has, takes 10 ms."""


def of_two_s(size: float) -> float:
    return 0.006 + 0.0001 * size


CAPACITY = 6400.0
"""Of one instance with batches of 64, within 5 %; two carry 1.6 times as much."""


def service_s(config: ServingConfig, size: int) -> float:
    return of_two_s(size) if config.instance_count == TWO else EXECUTION_S


def with_another_kind(
    folder: Path, speeds: list[float], *, profiled: float, total_s: float = 32.0, **options: Any
) -> Ended:
    """Certify two trials of one instance; executions of two were profiled as so many times their usual ones."""
    trials = tried(folder, 64, 0, CAPACITY), tried(folder, 32, 1, CAPACITY / 2)
    other = replace(trials[0].served, instance_count=TWO, intra_op_threads=1)
    surrogate = profile(folder, *trials, trials[0].changed(served=other), slo=EASY)
    curves = surrogate.curves[surrogate.kind_of(knobs_of(other))]
    curves[TWO] = replace(curves[TWO], seconds=(profiled * of_two_s(1), profiled * of_two_s(64)))
    write_curves(folder, surrogate.curves)
    given = UnsteadyBench(service_s=service_s, speed=Speed(np.array(speeds), 1.0))
    return ended(folder, given, *trials, profiled=False, slo=EASY, total_s=total_s, goes_on=True, **options)


def test_what_is_the_best_if_its_profiles_met_slow_phases_alone_is_tried_and_certified(tmp_path: Path) -> None:
    found = with_another_kind(tmp_path, SOMETIMES_SLOW, profiled=2.0, total_s=38.0)
    assert found.winner.served.instance_count == TWO
    assert found.winner.number > 1, "it was tried after the two of the search"
    assert found.winner.why.prediction is not None
    assert found.certificate.confirmed_again
    assert found.certificate.rate_per_s > 0.9 * CAPACITY


@pytest.mark.parametrize(("total_s", "tried"), [(15.0, False), (60.0, True)])
def test_what_may_be_better_is_tried_after_a_certificate_if_there_is_time(
    total_s: float, tried: bool, tmp_path: Path
) -> None:
    found = with_another_kind(tmp_path, STEADY, profiled=1.0, total_s=total_s)
    assert found.certificate.confirmed_again
    assert (found.winner.served.instance_count == TWO) == tried
    assert (found.certificate.rate_per_s > 1.1 * CAPACITY) == tried


def test_a_storage_that_fails_in_a_later_trial_takes_no_certificate(tmp_path: Path) -> None:
    def fails(event: events.Event) -> None:
        if isinstance(event, events.TrialStarted):
            raise StorageFailed("The storage did not answer.", "")

    found = with_another_kind(tmp_path, STEADY, profiled=1.0, total_s=60.0, on_event=fails)
    assert found.winner.number == 0
    assert found.certificate.confirmed_again


@pytest.mark.parametrize(
    ("speeds", "profiled", "total_s"),
    [
        pytest.param(STEADY, 2.0, 32.0, id="a machine without slow phases has told the truth"),
        pytest.param(SOMETIMES_SLOW, 8.0, 32.0, id="no slow phase makes it eight times as slow"),
        pytest.param(SOMETIMES_SLOW, 2.0, 10.0, id="there is no time for another trial"),
    ],
)
def test_nothing_else_is_tried_if_it_cannot_be_the_best_or_not_in_time(
    tmp_path: Path, speeds: list[float], profiled: float, total_s: float
) -> None:
    found = with_another_kind(tmp_path, speeds, profiled=profiled, total_s=total_s)
    assert {config.instance_count for config in found.bench.loaded} == {1}


def test_nothing_else_is_tried_after_the_user_asked_to_finish(tmp_path: Path) -> None:
    found = with_another_kind(tmp_path, SOMETIMES_SLOW, profiled=2.0, stop=lambda: True)
    assert {config.instance_count for config in found.bench.loaded} == {1}


def test_what_is_seen_at_the_end_makes_it_plan_again(tmp_path: Path) -> None:
    """The machine was slow for 2 s as it began; after half a minute that is rarer than it seemed."""
    speed = Speed(np.array([1.0] * 4 + [0.5] * 2 + [1.0] * 394), 1.0)
    given = UnsteadyBench(service_s=service_s, speed=speed)
    found = ended(tmp_path, given, tried(tmp_path, 16, 1), slo=EASY, total_s=60.0)
    assert found.certificate.confirmed_again
    assert found.certificate.rate_per_s > 0.48 * PER_S[16]


def test_every_confirmation_keeps_how_slow_the_machine_was_until_then(tmp_path: Path) -> None:
    speed = Speed(np.array([1.0] * 4 + [0.5] * 2 + [1.0] * 24), 1.0)
    given = UnsteadyBench(service_s=service_s, speed=speed)
    found = ended(tmp_path, given, tried(tmp_path, 16, 1), slo=EASY, total_s=60.0)
    machine = [one.believed.machine for one in read_confirmations(found.folder)]
    assert (machine[0].seen_s, machine[0].share, machine[0].slowdown) == (0.0, 0.0, 1.0), "nothing was seen yet"
    assert machine[-1].slowdown == pytest.approx(2.0, rel=0.2)
    assert machine[-1].share == pytest.approx(2.0 / machine[-1].seen_s, rel=0.3), "slow for 2 s, once by then"


def test_what_slow_phases_cost_is_recorded_and_they_can_be_ignored(tmp_path: Path) -> None:
    def certificate(name: str, **options: Any) -> CertificateRecord:
        speed = Speed(np.array([1.0] * 4 + [0.5] * 2 + [1.0] * 24), 1.0)
        folder = tmp_path / name
        folder.mkdir()
        given = UnsteadyBench(service_s=service_s, speed=speed)
        return ended(folder, given, tried(folder, 16, 1), slo=EASY, total_s=60.0, **options).certificate

    covered, ignored = certificate("covered"), certificate("ignored", ignore_slow_phases=True)
    assert (covered.slow_phases.ignored, ignored.slow_phases.ignored) == (False, True)
    assert 0 < covered.slow_phases.share < 1 < covered.slow_phases.slowdown
    assert covered.rate_per_s < 0.9 * covered.slow_phases.usual_per_s
    assert ignored.unseen_every_s is None, "phases that are ignored need not be seen"
    assert covered.rate_per_s < ignored.rate_per_s <= 1.01 * ignored.slow_phases.usual_per_s
