"""What tells that the machine has changed its speed, and what does not."""

from dataclasses import replace
from pathlib import Path

import pytest
import recommendations

from search.simulator.service_times import ServiceCurve
from search.simulator.service_times_file import PROFILE_FILE, put_aside
from search.simulator.surrogate import Predicted
from search.study.drift import is_suspicious, slowdown_between
from search.trials.trial import Trial

CURVE = ServiceCurve(
    busy=1,
    sizes=(1.0, 4.0, 16.0),
    seconds=(0.002, 0.005, 0.017),
    handover_s=0.0,
    fit_error=0.0,
    overhead_s=0.0,
    noise=(1.0,),
)
PREDICTION = Predicted(knobs={}, rate_per_s=1000.0, sd=0.03, simulated_per_s=1000.0)


def trial(rate_per_s: float | None, *, state: str = "complete", error: float = 0.02) -> Trial:
    low, high = (None, None) if rate_per_s is None else (rate_per_s * (1 - error), rate_per_s / (1 - error))
    return recommendations.trial(state=state, rate_low_per_s=low, rate_high_per_s=high)


@pytest.mark.parametrize("factor", [0.7, 1.0, 1.8])
def test_a_slower_machine_is_slower_at_every_size(factor: float) -> None:
    slower = replace(CURVE, sizes=(2.0, 8.0), seconds=(0.003 * factor, 0.009 * factor))
    assert slowdown_between(CURVE, slower) == pytest.approx(factor)


def test_curves_without_a_size_in_common_are_compared_between_them() -> None:
    assert slowdown_between(replace(CURVE, sizes=(1.0,), seconds=(0.002,)), CURVE) == pytest.approx(1.0, abs=0.6)


@pytest.mark.parametrize(
    ("seen", "has_measurements", "suspicious"),
    [
        (trial(1000.0), True, False),
        (trial(850.0), True, False),
        (trial(700.0), True, True),
        (trial(1300.0), True, True),
        (trial(650.0), False, False),
        (trial(550.0), False, True),
        (trial(None, state="infeasible"), True, True),
        (trial(None, state="failed"), True, False),
        (trial(300.0, state="pruned"), True, False),
    ],
)
def test_a_trial_far_from_its_prediction_is_suspicious(
    seen: Trial, has_measurements: bool, suspicious: bool
) -> None:
    assert is_suspicious(seen, PREDICTION, has_measurements=has_measurements) is suspicious


def test_the_profile_of_the_machine_as_it_was_stays_in_the_run(tmp_path: Path) -> None:
    put_aside(tmp_path, machine_epoch=0)
    (tmp_path / PROFILE_FILE).write_text("{}")
    put_aside(tmp_path, machine_epoch=1)
    assert [path.name for path in tmp_path.iterdir()] == ["service_times.1.json"]
