"""How long a run takes until its limit is met, when that is hopeless, and how much lower the next rate is."""

import dataclasses
import math
from typing import Any

import pytest
from simulated_load import SimulatedLoad
from simulated_queues import BATCHING_GPU

from loadgen.spec.limits import LatencyLimit
from loadgen.statistics.confirm import (
    Attempt,
    _Confirming,
    _step_down,
    as_decided,
    is_hopeless,
    seconds_needed,
    shortest_s,
)
from loadgen.statistics.sequential import log_evidence_below, most_violations
from loadgen.statistics.slo_test import Verdict, certify

KNEE = BATCHING_GPU.rate_at_limit_per_s
ANSWERS = ("inconclusive", "violated")


def test_seconds_needed_are_those_after_which_a_steady_run_is_met() -> None:
    log = next(BATCHING_GPU.logs(0.95 * KNEE, 40, seed=3, runs=1))
    verdict = dataclasses.replace(certify(log, LatencyLimit(limit_ms=50)), n=10_000, violations=20, vif=30.0)
    seconds = seconds_needed(verdict, 1000)
    assert 0 < seconds < math.inf
    assert seconds_needed(dataclasses.replace(verdict, violations=0), 1000) < seconds
    assert seconds_needed(dataclasses.replace(verdict, vif=60.0), 1000) > seconds
    assert seconds_needed(dataclasses.replace(verdict, violations=100), 1000) == math.inf


def test_an_answer_that_ended_a_run_stands_where_its_last_requests_only_blur_it() -> None:
    log = next(BATCHING_GPU.logs(0.85 * KNEE, 40, seed=3, runs=1))
    met = (certify(log, LatencyLimit(limit_ms=50)),)
    blurred, violated = (tuple(dataclasses.replace(one, answer=answer) for one in met) for answer in ANSWERS)  # type: ignore[arg-type]
    assert met[0].answer == "met"
    assert as_decided(blurred, [met, met]) == met
    assert as_decided(blurred, [met]) == blurred
    assert as_decided(violated, [met, met]) == violated


P99, P50 = LatencyLimit(quantile=0.99, limit_ms=40.0), LatencyLimit(quantile=0.5, limit_ms=800.0)
GOOD = certify(next(BATCHING_GPU.logs(0.8 * KNEE, 20, seed=3, runs=1)), LatencyLimit(limit_ms=50))


def verdict(n: int, violations: int, *, burst: float = 1.0, **changes: Any) -> Verdict:
    """Of a limit of 40 ms at the p99 where nothing else is said."""
    given: dict[str, Any] = {
        "n": n,
        "violations": violations,
        "vif": 2 * burst,
        "limit": P99,
        "answer": "inconclusive",
    }
    return dataclasses.replace(GOOD, **{**given, **changes})


@pytest.mark.parametrize(
    ("n", "violations", "burst"), [(0, 0, 1.0), (1000, 5, 1.0), (4000, 10, 12.0), (50, 0, 6.0)]
)
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_seconds_needed_are_those_in_which_the_evidence_comes_to_suffice(
    n: int, violations: int, burst: float, confidence: float
) -> None:
    found_s = seconds_needed(verdict(n, violations, burst=burst, confidence=confidence), 200.0)
    later = n + 200.0 * found_s
    share = violations / max(n, 1)
    evidence = log_evidence_below(share * later, later, 0.01, burst)
    assert evidence == pytest.approx(-math.log(1 - confidence), rel=1e-4)
    assert evidence >= -math.log(1 - confidence) - 1e-9


def test_violations_that_are_forgiven_do_not_count_from_the_first_request_on() -> None:
    found_s = seconds_needed(verdict(1, 1), 200.0, forgiven_bursts=0.995)
    later = 1 + 200.0 * found_s
    assert log_evidence_below(0.005 * later, later, 0.01, 1.0) == pytest.approx(-math.log(0.05), rel=1e-4)


def test_no_more_seconds_are_needed_where_the_evidence_suffices() -> None:
    assert seconds_needed(verdict(100_000, 10), 200.0) == pytest.approx(0.0, abs=1e-6)


def test_bursts_that_are_forgiven_are_taken_from_the_violations() -> None:
    forgiven = seconds_needed(verdict(4000, 60, burst=12.0), 200.0, forgiven_bursts=2.0)
    assert forgiven == pytest.approx(seconds_needed(verdict(4000, 36, burst=12.0), 200.0), rel=1e-6)
    none_left = seconds_needed(verdict(4000, 20, burst=12.0), 200.0, forgiven_bursts=2.0)
    assert none_left == pytest.approx(seconds_needed(verdict(4000, 0, burst=12.0), 200.0), rel=1e-6)


@pytest.mark.parametrize("never", [verdict(1000, 10), verdict(1000, 500), verdict(1000, 0, vif=math.nan)])
def test_a_share_that_is_not_below_what_is_allowed_is_never_met(never: Verdict) -> None:
    assert seconds_needed(never, 200.0) == math.inf


def test_a_share_so_near_to_what_is_allowed_is_not_waited_for() -> None:
    assert seconds_needed(verdict(10_000_000, 99_999, burst=100.0), 200.0) == math.inf


@pytest.mark.parametrize(("rate_per_s", "burst"), [(10.0, 1.0), (1000.0, 12.5)])
@pytest.mark.parametrize(("quantile", "confidence"), [(0.99, 0.95), (0.9, 0.95), (0.99, 0.8)])
def test_the_shortest_run_is_that_in_which_no_violation_is_just_few_enough(
    rate_per_s: float, burst: float, quantile: float, confidence: float
) -> None:
    """In bursts of a quarter of the limit's worth of requests, of one at the least."""
    limit = LatencyLimit(quantile=quantile, limit_ms=50.0)
    n = round(shortest_s(limit, rate_per_s, confidence) * rate_per_s)
    assert most_violations(n, 1 - quantile, burst, confidence) >= 0
    assert most_violations(n - 1, 1 - quantile, burst, confidence) == -1


def confirming(*limits: LatencyLimit, confidence: float = 0.95, budget_s: float = 60.0) -> _Confirming:
    return _Confirming(
        measure=SimulatedLoad(BATCHING_GPU),
        limits=limits,
        confidence=confidence,
        budget_s=budget_s,
        seed=1,
        stop=lambda: False,
        on_attempt=id,
    )


def test_a_run_has_five_times_the_shortest_that_decides_every_limit_with_its_share_of_the_confidence() -> None:
    both = confirming(P99, P50)
    assert both.warmup_s == pytest.approx(2.4)  # three of the longer limit
    of_p99_s, of_p50_s = (shortest_s(limit, 1000.0, 0.975) for limit in (P99, P50))
    assert of_p50_s < of_p99_s
    assert both.patience_s(1000.0) == pytest.approx(5 * (2.4 + of_p99_s))
    alone = confirming(P99, confidence=0.9)
    assert alone.warmup_s == 1.0
    assert alone.patience_s(1000.0) == pytest.approx(5 * (1.0 + shortest_s(P99, 1000.0, 0.9)))


@pytest.mark.parametrize(
    ("n", "rate_per_s", "burst", "said"),
    [
        (199, 100.0, 1.0, False),  # less than two seconds
        (200, 100.0, 1.0, True),
        (299, 100.0, 6.0, False),  # half a burst of six is allowed among 300
        (300, 100.0, 6.0, True),
        (799, 100.0, 90.0, False),  # no longer bursts are waited for than sixteen of the least, of one here
        (800, 100.0, 90.0, True),
        (1599, 200.0, 90.0, False),  # of two here
        (1600, 200.0, 90.0, True),
    ],
)
def test_what_is_hopeless_is_not_said_before_bursts_have_been_allowed(
    n: int, rate_per_s: float, burst: float, said: bool
) -> None:
    assert is_hopeless(verdict(n, n, burst=burst), rate_per_s, 1e9) is said


def test_a_run_is_hopeless_if_it_takes_longer_than_is_left_though_one_burst_was_bad_luck() -> None:
    seen = verdict(4000, 36, burst=12.0)
    needed_s = seconds_needed(verdict(4000, 24, burst=12.0), 200.0)
    assert not is_hopeless(seen, 200.0, 1.001 * needed_s)
    assert is_hopeless(seen, 200.0, 0.999 * needed_s)


def attempt_of(
    answer: str, *, served_per_s: float = math.inf, rate_per_s: float = 1000.0, **changes: tuple[Verdict]
) -> Attempt:
    return Attempt(
        rate_per_s=rate_per_s,
        load_s=5.0,
        verdict=verdict(4000, 30, burst=12.0, answer=answer),
        overloaded=False,
        problems=(),
        served_per_s=served_per_s,
        **changes,
    )


@pytest.mark.parametrize(
    ("answers", "step"),
    [
        (["violated"], 0.92),
        (["inconclusive", "violated"], 0.92),
        (["violated", "violated"], 0.92**2),
        (["violated"] * 4, 0.92**4),
        (["violated"] * 5, 0.7),
        (["inconclusive"], 0.96),
        (["violated", "inconclusive"], 0.96),
        (["inconclusive", "inconclusive"], 0.96**2),
        (["inconclusive"] * 3, 0.96**3),
        (["inconclusive"] * 5, 0.85),
    ],
)
def test_rates_that_fail_in_a_row_are_further_apart_each_time(answers: list[str], step: float) -> None:
    assert _step_down([attempt_of(answer) for answer in answers], 1e9) == pytest.approx(step)


def test_after_a_rate_that_was_far_too_high_nine_tenths_of_what_was_served_are_tried() -> None:
    assert _step_down([attempt_of("violated", served_per_s=500.0)], 1e9) == pytest.approx(0.45)
    assert _step_down([attempt_of("violated", served_per_s=1100.0)], 1e9) == pytest.approx(0.92)
    assert _step_down([attempt_of("inconclusive", served_per_s=500.0)], 1e9) == pytest.approx(0.96)


@pytest.mark.parametrize(("times", "steps"), [(0.9, 1), (1.0, 1), (2.0, 2), (4.0, 3), (100.0, 3.98)])
def test_the_less_is_left_the_lower_is_tried(times: float, steps: float) -> None:
    """`times` as long as half of what is left would a rate without violations need; 0.85 at the least."""
    needed_s = seconds_needed(verdict(0, 0, burst=12.0), 1000.0)
    found = _step_down([attempt_of("inconclusive")], 2 * needed_s / times)
    assert found == pytest.approx(max(0.85, 0.96**steps), rel=1e-3)


def test_of_several_limits_the_one_that_needs_longest_says_how_much_lower() -> None:
    slow = verdict(4000, 30, burst=48.0)
    needed_s = seconds_needed(verdict(0, 0, burst=48.0), 1000.0)
    assert _step_down([attempt_of("inconclusive", others=(slow,))], needed_s) == pytest.approx(0.96**2, rel=1e-3)
    assert _step_down([attempt_of("inconclusive")], needed_s) == pytest.approx(0.96, rel=1e-3)
    unknown = verdict(0, 0, vif=math.nan)
    assert _step_down([attempt_of("inconclusive", others=(unknown,))], needed_s) == 0.96
