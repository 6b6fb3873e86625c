"""Is the promise met when somebody else checks it? On queues whose p99 is known, over 2,000 runs and more."""

import math
from collections import Counter

import numpy as np
import pytest
from simulated_queues import (
    BATCHING_CPU,
    BATCHING_GPU,
    CONSTANT,
    FAST_EXPONENTIAL,
    LONG_BURSTS,
    QUEUES,
    SLOW_EXPONENTIAL,
    Queue,
)

from loadgen.measurement.request_log import RequestLog
from loadgen.spec.limits import LatencyLimit
from loadgen.statistics.slo_test import Verdict, certify
from search.trials.context import confidence_of_a_run

DURATION_S = {
    SLOW_EXPONENTIAL: 60,
    FAST_EXPONENTIAL: 12,
    LONG_BURSTS: 20,
    CONSTANT: 60,
    BATCHING_CPU: 60,
    BATCHING_GPU: 20,
}
RUNS = 340  # of each of six queues
LOOKS = 8


def sequential_verdict(queue: Queue, log: RequestLog, duration_s: float, *, confidence: float = 0.95) -> Verdict:
    """Look at the growing log until there is an answer, as a run that stops by itself does."""
    for now_s in np.linspace(0, duration_s, LOOKS + 1)[1:]:
        known = int(np.searchsorted(log.scheduled_ns, (now_s - queue.limit_ms / 1e3) * 1e9))
        verdict = certify(log.rows(0, known), LatencyLimit(limit_ms=queue.limit_ms), confidence=confidence)
        if verdict.answer != "inconclusive":
            break
    return verdict


def answers(
    queue: Queue, rate_per_s: float, *, seed: int, runs: int, duration_s: float | None = None
) -> Counter[str]:
    duration_s = duration_s or DURATION_S[queue]
    logs = queue.logs(rate_per_s, duration_s, seed=seed, runs=runs)
    return Counter(sequential_verdict(queue, log, duration_s).answer for log in logs)


def at_most(share: float, runs: int) -> int:
    """The most wrong answers in `runs` that a true rate of `share` explains (three standard deviations)."""
    return math.floor(runs * share + 3 * math.sqrt(runs * share * (1 - share)))


@pytest.mark.parametrize("queue", QUEUES, ids=lambda queue: queue.name)
def test_the_simulated_queues_have_their_quantile_at_the_limit(queue: Queue) -> None:
    """M/M/1 by its closed form, the others by this simulation, some hundred times as long as a run."""
    least = 0.0080 if "M/M/1" in queue.name else 0.0095
    assert least < queue.share_over_limit(queue.rate_at_limit_per_s, seed=11) < 0.0120


@pytest.mark.long
def test_a_promise_at_the_knee_is_false_at_most_once_in_twenty() -> None:
    """Just where the limit breaks, over 2,040 runs, each of them looked at eight times."""
    wrong = {queue.name: answers(queue, queue.rate_at_limit_per_s, seed=1, runs=RUNS)["met"] for queue in QUEUES}
    assert sum(wrong.values()) <= 0.05 * RUNS * len(QUEUES), wrong
    assert max(wrong.values()) <= at_most(0.05, RUNS), wrong


@pytest.mark.long
def test_two_confirmations_at_the_root_are_both_false_at_most_once_in_twenty() -> None:
    """Each of the two on queues of their own, just where the limit breaks, in pairs of the same queue."""
    pairs, wrong = 60, 0
    confidence = confidence_of_a_run(0.95)
    for queue in QUEUES:
        duration_s = DURATION_S[queue]
        logs = queue.logs(queue.rate_at_limit_per_s, duration_s, seed=12, runs=2 * pairs)
        met = [sequential_verdict(queue, log, duration_s, confidence=confidence).answer == "met" for log in logs]
        assert sum(met) <= at_most(1 - confidence, 2 * pairs), queue.name
        wrong += sum(first and second for first, second in zip(met[::2], met[1::2], strict=True))
    assert wrong <= 0.05 * pairs * len(QUEUES)


@pytest.mark.parametrize("queue", QUEUES, ids=lambda queue: queue.name)
def test_a_refusal_at_half_the_allowance_is_false_at_most_once_in_twenty(queue: Queue) -> None:
    rate = rate_at_half_the_allowance(queue)
    assert answers(queue, rate, seed=2, runs=60)["violated"] <= 0.05 * 60


def rate_at_half_the_allowance(queue: Queue) -> float:
    rate = queue.rate_at_limit_per_s
    while queue.share_over_limit(rate, seed=5, requests=1e6) > 0.005:
        rate *= 0.99
    return rate


@pytest.mark.parametrize(
    ("queue", "load"),
    [(FAST_EXPONENTIAL, 0.8), (LONG_BURSTS, 0.85), (BATCHING_CPU, 0.85), (BATCHING_GPU, 0.9), (CONSTANT, 0.8)],
    ids=lambda value: getattr(value, "name", value),
)
def test_well_below_the_knee_most_runs_are_certified(queue: Queue, load: float) -> None:
    found = answers(queue, load * queue.rate_at_limit_per_s, seed=3, runs=40)
    assert found["met"] >= 25
    assert found["violated"] == 0


@pytest.mark.parametrize("queue", QUEUES, ids=lambda queue: queue.name)
def test_far_above_the_knee_every_run_is_refused(queue: Queue) -> None:
    assert answers(queue, 1.6 * queue.rate_at_limit_per_s, seed=4, runs=20)["violated"] == 20


@pytest.mark.parametrize("queue", QUEUES, ids=lambda queue: queue.name)
def test_three_seconds_at_the_knee_say_nothing(queue: Queue) -> None:
    found = answers(queue, queue.rate_at_limit_per_s, seed=6, runs=40, duration_s=3)
    assert found["inconclusive"] >= 38


def test_the_interval_covers_the_closed_form() -> None:
    """M/M/1: the p99 of the time in the system is ln(100) / (mu - lambda)."""
    queue, rate = FAST_EXPONENTIAL, 0.9 * FAST_EXPONENTIAL.rate_at_limit_per_s
    p99_ms = 1e3 * math.log(100) / (2000 - rate)
    verdicts = [
        certify(log, LatencyLimit(limit_ms=queue.limit_ms)) for log in queue.logs(rate, 30, seed=7, runs=60)
    ]
    assert sum(verdict.latency_upper_ms < p99_ms for verdict in verdicts) <= at_most(0.05, 60)
    assert sum(verdict.latency_lower_ms > p99_ms for verdict in verdicts) <= at_most(0.05, 60)
    widths = [verdict.latency_upper_ms - verdict.latency_lower_ms for verdict in verdicts]
    assert np.median(widths) < p99_ms
    points = [verdict.latency_ms for verdict in verdicts]
    assert np.mean(points) == pytest.approx(p99_ms, rel=0.05)
