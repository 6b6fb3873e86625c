"""Costs and gains are computed from certified rates only."""

import pytest
from recommendations import certificate, measurement, trial

from search.answer.recommend import alternatives_to, cost_of, energy_of, gain_over, reason_for
from search.cost.cost import PriceRecord
from search.records.trial import GpuRecord

PRICE = PriceRecord(usd_per_hour=3.6, source="--price-per-hour", as_of="", describes="this machine, as given")


def test_cost_is_at_the_certified_rate() -> None:
    cost = cost_of(PRICE, trial(certificate=certificate(1000.0)), None, rate_to_serve_per_s=None)
    assert cost.cost_per_million_inferences_usd == pytest.approx(1.0)  # 3.60 USD buy 3.6 million
    assert cost.replicas is None
    assert cost.total_usd_per_hour is None


def test_every_row_of_a_request_is_an_inference() -> None:
    gpu = GpuRecord(utilization=0.5, memory_used_bytes=1, power_w=72.0, energy_per_1000_inferences_j=None)
    winner, baseline = (
        trial(certificate=certificate(rate), measurement=measurement(gpu=gpu), rate_at_limit_per_s=rate)
        for rate in (1000.0, 500.0)
    )
    cost = cost_of(PRICE, winner, baseline, rate_to_serve_per_s=2000.0, rows_per_request=8)
    assert cost.cost_per_million_inferences_usd == pytest.approx(0.125)  # 3.60 USD buy 28.8 million
    assert cost.baseline_cost_per_million_inferences_usd == pytest.approx(0.25)
    assert cost.energy_kwh_per_million_inferences == pytest.approx(0.025)  # 72 W at 800 inferences/s
    assert cost.baseline_energy_kwh_per_million_inferences == pytest.approx(0.025)
    assert cost.replicas == 2  # rates are of requests
    assert cost.total_usd_per_hour == pytest.approx(7.2)


@pytest.mark.parametrize(
    ("power_w", "energy_j", "kwh"),
    [(72.0, None, 0.2), (72.0, 360.0, 0.1), (None, None, None)],  # 72 W at 100/s; 0.36 J each
)
def test_energy_by_the_counter_else_by_the_power(
    power_w: float | None, energy_j: float | None, kwh: float | None
) -> None:
    gpu = GpuRecord(utilization=0.5, memory_used_bytes=1, power_w=power_w, energy_per_1000_inferences_j=energy_j)
    assert energy_of(trial(measurement=measurement(gpu=gpu))) == (None if kwh is None else pytest.approx(kwh))
    assert energy_of(trial(measurement=measurement(gpu=gpu), certificate=None)) is None
    assert energy_of(trial(measurement=measurement())) is None


def test_a_gain_is_that_of_the_estimates_within_the_errors_of_both() -> None:
    winner = trial(certificate=certificate(900.0), rate_at_limit_per_s=1000.0)
    other = trial(0, certificate=certificate(100.0), rate_at_limit_per_s=500.0)
    assert gain_over(winner, other) == pytest.approx((2.0, 2.0, 2.0))
    wide = other.changed(rate_low_per_s=400.0, rate_high_per_s=625.0)
    assert gain_over(winner, wide) == pytest.approx((1.6, 2.0, 2.5))
    both = gain_over(winner.changed(rate_low_per_s=800.0, rate_high_per_s=1250.0), wide)
    assert both is not None
    assert 1.28 < both[0] < 1.6 < 2.5 < both[2] < 3.125
    assert gain_over(winner, other.changed(rate_at_limit_per_s=None)) is None
    assert gain_over(winner, None) is None


def test_alternatives_are_the_next_best_complete_trials() -> None:
    trials = [trial(number, rate_at_limit_per_s=100.0 * number) for number in range(8)]
    trials.append(trial(9, state="pruned", rate_at_limit_per_s=5000.0))
    assert [record.number for record in alternatives_to(trials[7], trials)] == [6, 5, 4, 3, 2]


def test_the_reason_counts_what_was_tried() -> None:
    winner = trial(0, rate_at_limit_per_s=1000.0)
    trials = [winner, trial(1, rate_at_limit_per_s=800.0), trial(2, state="pruned"), trial(3, state="failed")]
    reason = reason_for(winner, trials)
    assert "4 configurations" in reason
    assert "2 measured" in reason
    assert "trial 1," in reason
    assert "20 %" in reason
