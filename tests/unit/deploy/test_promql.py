import pytest

from deploy.promql import BURN_RATES, burn_alerts, over_limit_steps, selector, summary_option, summary_quantiles


def test_steps_for_a_p99() -> None:
    assert dict(over_limit_steps(0.99)) == {
        "0.5": 0.5, "0.15": 0.85, "0.1": 0.9, "0.07": 0.93, "0.04": 0.96, "0.02": 0.98,
        "0.01": 0.99, "0.001": 0.999
    }  # fmt: skip


@pytest.mark.parametrize("quantile", [0.95, 0.99, 0.999])
def test_every_burn_rate_can_be_seen(quantile: float) -> None:
    shares = [float(share) for share, _ in over_limit_steps(quantile)]
    for alert in burn_alerts(quantile):
        assert any(share > alert.factor * (1 - quantile) for share in shares)


def test_a_budget_of_a_tenth_cannot_burn_14_times_too_fast() -> None:
    assert len(burn_alerts(0.9)) == len(BURN_RATES) - 1


def test_triton_keeps_the_quantile_of_the_limit() -> None:
    assert 0.97 in summary_quantiles(0.97)
    assert summary_option(0.99).split(",")[0] == "0.5:0.01"
    assert "0.99:0.001" in summary_option(0.99)


def test_labels_cannot_break_out() -> None:
    assert selector("a", 'x"} or vector(1) #\n') == r'{job="a",model="x\"} or vector(1) #\n"}'
