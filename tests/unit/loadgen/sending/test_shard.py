import random
from typing import Any

import pytest

from loadgen.sending.worker import BacklogRule

TICK_NS = 50_000_000


def first_verdict_s(
    in_flight_at: Any, *, rate_per_s: float = 1000.0, limit_ms: float = 50.0, seconds: float = 20.0
) -> float | None:
    """When the rule says overloaded, or None."""
    rule = BacklogRule(rate_per_s=rate_per_s, limit_ms=limit_ms)
    for tick in range(int(seconds / 0.05)):
        if rule.overloaded(tick * TICK_NS, int(in_flight_at(tick * 0.05))):
            return tick * 0.05
    return None


@pytest.mark.parametrize("surplus_per_s", [50, 200, 1000])
def test_a_queue_that_grows_without_end_is_overload_a_second_after_its_threshold(surplus_per_s: int) -> None:
    crossed_s = 150 / surplus_per_s
    verdict_s = first_verdict_s(lambda at: surplus_per_s * at)
    assert crossed_s < verdict_s < crossed_s + 1.2


def test_a_steady_queue_is_not_however_long() -> None:
    assert first_verdict_s(lambda _: 500) is None


def test_a_steady_noisy_queue_is_rarely_taken_for_a_rising_one() -> None:
    wrong = 0
    for seed in range(50):
        noise = random.Random(seed)
        if first_verdict_s(lambda _, noise=noise: 100 + noise.gauss(0, 20), seconds=10) is not None:
            wrong += 1
    assert wrong == 0  # its mean is under the threshold of 150: it falls below all the time


def test_a_burst_that_drains_is_not() -> None:
    assert first_verdict_s(lambda at: max(0, 1000 - 400 * at)) is None


def test_a_short_rise_is_not() -> None:
    assert first_verdict_s(lambda at: 400 * at if at < 0.8 else 0) is None


def test_nothing_is_said_before_a_second_was_seen() -> None:
    assert 0.85 < first_verdict_s(lambda at: 200 + 1000 * at) < 1.1


def test_a_queue_that_shrank_in_between_is_not_rising() -> None:
    """It waits for a third of a second at 300, then at 200, at 400, and is gone."""
    assert first_verdict_s(lambda at: 300 if at < 0.3 else 200 if at < 0.7 else 400 if at < 1.04 else 0) is None


def test_a_low_rate_has_a_few_requests_in_flight_without_being_overloaded() -> None:
    assert first_verdict_s(lambda at: min(6, at), rate_per_s=10, limit_ms=20) is None
