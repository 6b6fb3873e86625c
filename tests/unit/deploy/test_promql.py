import pytest

from deploy.promql import BURN_RATES, burn_alerts, over_limit_steps, selector


@pytest.mark.parametrize("quantile", [0.95, 0.99, 0.999])
def test_every_burn_rate_can_be_seen(quantile: float) -> None:
    shares = [float(share) for share, _ in over_limit_steps(quantile)]
    for alert in burn_alerts(quantile):
        assert any(share > alert["factor"] * (1 - quantile) for share in shares)


def test_a_budget_of_a_tenth_cannot_burn_14_times_too_fast() -> None:
    assert len(burn_alerts(0.9)) == len(BURN_RATES) - 1


def test_labels_cannot_break_out() -> None:
    assert selector("a", 'x"} or vector(1) #\n') == r'{job="a",model="x\"} or vector(1) #\n"}'
