import dataclasses
import itertools
import math

import numpy as np
import pytest
from simulated_load import SimulatedLoad
from simulated_queues import BATCHING_GPU, LONG_BURSTS, log_of

from loadgen.capacity import Probe
from loadgen.certify import certify
from loadgen.confirm import (
    FIRST_SHARE,
    MOST_UNTRUSTED,
    UNTRUSTED_FOR_S,
    Attempt,
    Confirmation,
    _Confirming,
    _step_down,
    as_decided,
    confirm,
    is_hopeless,
    seconds_needed,
    shortest_s,
)
from loadgen.evidence import log_evidence_below, most_violations
from loadgen.measurement import no_rows
from loadgen.order import LatencyLimit

KNEE = BATCHING_GPU.rate_at_limit_per_s
ANSWERS = ("undecided", "broken")


def confirmed(load: SimulatedLoad, rate: float, **options):
    return confirm(load, rate, **{"limit_ms": load.queue.limit_ms, "budget_s": 60.0, "seed": 1, **options})


def test_a_rate_below_the_limit_is_kept_and_the_run_stops_itself():
    load = SimulatedLoad(BATCHING_GPU)
    confirmation = confirmed(load, 0.88 * KNEE)
    assert confirmation.kept.rate_per_s == pytest.approx(FIRST_SHARE * 0.88 * KNEE)
    assert confirmation.kept.verdict.answer == "kept"
    assert len(confirmation.attempts) == 1
    assert load.load_s < 40
    assert confirmation.load_s == pytest.approx(load.load_s, abs=0.5)


def test_a_rate_above_the_limit_is_lowered():
    load = SimulatedLoad(BATCHING_GPU)
    confirmation = confirmed(load, 1.3 * KNEE)
    assert confirmation.kept.rate_per_s < KNEE
    assert load.rates == sorted(load.rates, reverse=True)
    assert not confirmation.attempts[0].kept


def test_nothing_is_promised_on_too_few_seconds():
    confirmation = confirmed(SimulatedLoad(LONG_BURSTS), LONG_BURSTS.rate_at_limit_per_s, budget_s=6)
    assert confirmation.kept is None
    assert "ran out" in confirmation.reason


def test_no_seconds_no_attempt():
    load = SimulatedLoad(BATCHING_GPU)
    assert confirmed(load, KNEE, budget_s=1).kept is None
    assert load.rates == []


@dataclasses.dataclass
class Overloaded(SimulatedLoad):
    """Every run ends because requests pile up, whatever its log says."""

    def __call__(self, *arguments, **options):
        return dataclasses.replace(super().__call__(*arguments, **options), overloaded=True)


@pytest.mark.parametrize("late", [False, True])
def test_a_rate_that_overloads_the_server_is_broken_whatever_its_latencies(late):
    load = Overloaded(BATCHING_GPU, problems_in=frozenset(range(100) if late else ()))
    confirmation = confirmed(load, 0.5 * KNEE, floor_per_s=0.45 * KNEE)
    assert confirmation.kept is None
    for attempt in confirmation.attempts:
        assert attempt.verdict.answer == "kept"
        assert not attempt.kept
        assert attempt.broken is not late


def test_a_run_that_sent_nothing_counts_against_the_budget_too():
    runs = []

    def nothing(rate_per_s, duration_s, seed, watch=None):
        assert len(runs) < 31, "it goes on for ever"
        runs.append(rate_per_s)
        return Probe(log=no_rows(), overloaded=False, problems=())

    assert confirm(nothing, 1000.0, limit_ms=50, budget_s=60.0, seed=1).kept is None
    assert len(runs) == 29  # 60 s without the last three of 2 s each, of which one is warm-up


def test_the_limit_says_how_long_a_run_has_to_be_at_the_least():
    """Three limits are left out, and a run of less than two seconds says nothing."""
    slow = dataclasses.replace(BATCHING_GPU, limit_ms=2000)
    for budget_s, runs in ((7.9, 0), (8.1, 1)):
        load = SimulatedLoad(slow)
        confirmed(load, 0.5 * KNEE, budget_s=budget_s)
        assert len(load.rates) == runs


@pytest.mark.parametrize("confidence", [0.8, 0.999])
def test_a_rate_is_kept_with_the_confidence_that_was_asked_for(confidence):
    confirmation = confirmed(SimulatedLoad(BATCHING_GPU), 0.7 * KNEE, confidence=confidence)
    assert confirmation.kept.verdict.confidence == confidence


def test_only_two_looks_in_a_row_end_a_run_as_kept():
    """The look in between sees a second of requests that were late."""
    good = next(BATCHING_GPU.logs(0.7 * KNEE, 20, seed=3, runs=1))
    late = dataclasses.replace(good, done_ns=good.done_ns + np.where(good.scheduled_ns > 19.5e9, 10**9, 0))
    assert [certify(log, limit_ms=50).answer for log in (good, late)] == ["kept", "undecided"]
    answers = []

    def measure(rate_per_s, duration_s, seed, watch):
        answers.extend(watch(log) for log in (good, late, good, good))
        return Probe(log=good, overloaded=False, problems=())

    assert confirm(measure, 0.7 * KNEE, limit_ms=50, budget_s=60.0, seed=1).kept is not None
    assert answers == [False, False, False, True]


def test_what_was_served_is_that_of_the_last_run_that_could_not_keep_up():
    attempt = confirmed(SimulatedLoad(BATCHING_GPU), 0.7 * KNEE).kept
    served = [dataclasses.replace(attempt, served_per_s=rate) for rate in (100.0, 50.0, math.inf)]
    assert Confirmation(kept=None, attempts=tuple(served), reason="").served_per_s == 50.0
    assert Confirmation(kept=attempt, attempts=(served[-1],), reason="").served_per_s == math.inf


def test_the_floor_is_kept():
    load = SimulatedLoad(BATCHING_GPU)
    confirmation = confirmed(load, 2 * KNEE, floor_per_s=1.7 * KNEE)
    assert confirmation.kept is None
    assert "was kept" in confirmation.reason
    assert min(load.rates) >= 1.7 * KNEE


def test_runs_with_problems_are_repeated_at_the_same_rate():
    load = SimulatedLoad(BATCHING_GPU, problems_in=frozenset({0, 1}))
    confirmation = confirmed(load, 0.88 * KNEE)
    assert load.rates[0] == load.rates[1] == load.rates[2]
    assert confirmation.kept is not None
    assert not confirmation.attempts[0].kept


def test_problems_that_go_on_end_it():
    load = SimulatedLoad(BATCHING_GPU, problems_in=frozenset(range(100)))
    confirmation = confirmed(load, 0.8 * KNEE, budget_s=600.0)
    assert confirmation.kept is None
    assert confirmation.reason == "the client sent late"
    assert len(load.rates) >= MOST_UNTRUSTED
    assert UNTRUSTED_FOR_S <= load.load_s < 2 * UNTRUSTED_FOR_S


def test_short_runs_with_problems_are_repeated_until_what_disturbs_them_is_gone():
    load = SimulatedLoad(BATCHING_GPU, problems_in=frozenset(range(MOST_UNTRUSTED)))
    confirmation = confirmed(load, 0.8 * KNEE)
    assert sum(attempt.load_s for attempt in confirmation.attempts[:-1]) < UNTRUSTED_FOR_S
    assert confirmation.kept is not None
    assert len(load.rates) == MOST_UNTRUSTED + 1


def test_stop_is_asked_before_and_within_runs():
    load = SimulatedLoad(BATCHING_GPU)
    assert confirmed(load, KNEE, stop=lambda: True).attempts == ()
    asked = []
    confirmed(load, 0.9 * KNEE, stop=lambda: asked.append(1) or len(asked) > 3)
    assert load.load_s < 3


def test_attempts_are_told_as_they_end():
    told = []
    confirmation = confirmed(SimulatedLoad(BATCHING_GPU), 1.2 * KNEE, on_attempt=told.append)
    assert tuple(told) == confirmation.attempts


def test_seconds_needed_are_those_after_which_a_steady_run_is_kept():
    log = next(BATCHING_GPU.logs(0.95 * KNEE, 40, seed=3, runs=1))
    verdict = dataclasses.replace(certify(log, limit_ms=50), n=10_000, violations=20, vif=30.0)
    seconds = seconds_needed(verdict, 1000)
    assert 0 < seconds < math.inf
    assert seconds_needed(dataclasses.replace(verdict, violations=0), 1000) < seconds
    assert seconds_needed(dataclasses.replace(verdict, vif=60.0), 1000) > seconds
    assert seconds_needed(dataclasses.replace(verdict, violations=100), 1000) == math.inf


def test_a_rate_is_not_kept_before_the_run_has_lasted_as_long_as_asked():
    soon = confirmed(SimulatedLoad(BATCHING_GPU), 0.7 * KNEE)
    later = confirmed(SimulatedLoad(BATCHING_GPU), 0.7 * KNEE, least_s=lambda: 3 * soon.load_s)
    assert soon.kept is not None
    assert later.kept is not None
    assert later.load_s > 2.9 * soon.load_s


def test_a_rate_that_takes_many_times_the_seconds_of_a_lower_one_is_given_up():
    load = SimulatedLoad(BATCHING_GPU)
    confirmation = confirmed(load, 1.01 * KNEE / FIRST_SHARE, budget_s=200.0)
    assert confirmation.kept is not None
    assert len(load.rates) > 1
    assert max(attempt.load_s for attempt in confirmation.attempts) < 100.0


def test_rates_that_are_not_decided_one_after_the_other_are_further_apart_each_time():
    load = SimulatedLoad(LONG_BURSTS)
    confirmation = confirmed(load, 1.02 * LONG_BURSTS.rate_at_limit_per_s, budget_s=200.0)
    assert confirmation.kept is not None
    assert not any(attempt.broken for attempt in confirmation.attempts)
    steps = [after / before for before, after in itertools.pairwise(load.rates)]
    assert len(steps) > 2
    assert steps == sorted(steps, reverse=True)
    assert steps[-1] < steps[0] < 1


@pytest.mark.parametrize("too_much", [0.97, 1.05])
def test_where_runs_are_long_anyway_those_with_many_bursts_end_sooner(too_much):
    rate = too_much * LONG_BURSTS.rate_at_limit_per_s
    short, long = (confirmed(SimulatedLoad(LONG_BURSTS), rate, least_s=lambda s=s: s) for s in (0.0, 15.0))
    assert not short.attempts[0].kept
    assert not long.attempts[0].kept
    assert long.attempts[0].load_s < short.attempts[0].load_s


@pytest.mark.parametrize("slower", [2.0, 3.0, 10.0])
def test_a_server_that_became_slower_shows_in_one_run_what_it_can_do(slower):
    load = SimulatedLoad(BATCHING_GPU)
    confirmation = confirmed(load, slower * KNEE)
    assert confirmation.kept.rate_per_s > 0.7 * KNEE
    assert load.rates[1] < 1.2 * KNEE
    assert len(load.rates) < 6
    assert confirmation.served_per_s < 1.5 * KNEE


def test_the_next_rate_is_no_higher_than_what_a_run_that_was_not_kept_told():
    load = SimulatedLoad(BATCHING_GPU)
    logs = []
    confirmation = confirmed(load, 1.05 * KNEE, most_after=lambda log: logs.append(log) or 0.8 * KNEE)
    assert confirmation.kept.rate_per_s == load.rates[1] == pytest.approx(0.8 * KNEE)
    assert len(logs) == 1
    assert len(logs[0]) > confirmation.attempts[0].verdict.n


def test_one_run_does_not_take_the_rate_to_nothing():
    load = SimulatedLoad(BATCHING_GPU)
    confirmed(load, 1.05 * KNEE, most_after=lambda log: 0.0)
    assert load.rates[1] == pytest.approx(0.7 * load.rates[0])


def test_an_answer_that_ended_a_run_stands_where_its_last_requests_only_blur_it():
    log = next(BATCHING_GPU.logs(0.85 * KNEE, 40, seed=3, runs=1))
    kept = (certify(log, limit_ms=50),)
    blurred, broken = (tuple(dataclasses.replace(one, answer=answer) for one in kept) for answer in ANSWERS)
    assert kept[0].answer == "kept"
    assert as_decided(blurred, [kept, kept]) == kept
    assert as_decided(blurred, [kept]) == blurred
    assert as_decided(broken, [kept, kept]) == broken


GOOD = certify(next(BATCHING_GPU.logs(0.8 * KNEE, 20, seed=3, runs=1)), limit_ms=50)


def verdict(n: int, violations: int, *, burst: float = 1.0, **changes):
    """Of a limit of 40 ms at the p99 where nothing else is said."""
    given = {"n": n, "violations": violations, "vif": 2 * burst, "limit_ms": 40.0, "answer": "undecided"}
    return dataclasses.replace(GOOD, **{**given, **changes})


@pytest.mark.parametrize(
    ("n", "violations", "burst"), [(0, 0, 1.0), (1000, 5, 1.0), (4000, 10, 12.0), (50, 0, 6.0)]
)
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_seconds_needed_are_those_in_which_the_evidence_comes_to_suffice(n, violations, burst, confidence):
    found_s = seconds_needed(verdict(n, violations, burst=burst, confidence=confidence), 200.0)
    later = n + 200.0 * found_s
    share = violations / max(n, 1)
    evidence = log_evidence_below(share * later, later, 0.01, burst)
    assert evidence == pytest.approx(-math.log(1 - confidence), rel=1e-4)
    assert evidence >= -math.log(1 - confidence) - 1e-9


def test_no_more_seconds_are_needed_where_the_evidence_suffices():
    assert seconds_needed(verdict(100_000, 10), 200.0) == pytest.approx(0.0, abs=1e-6)


def test_bursts_that_are_forgiven_are_taken_from_the_violations():
    forgiven = seconds_needed(verdict(4000, 60, burst=12.0), 200.0, forgiven_bursts=2.0)
    assert forgiven == pytest.approx(seconds_needed(verdict(4000, 36, burst=12.0), 200.0), rel=1e-6)
    none_left = seconds_needed(verdict(4000, 20, burst=12.0), 200.0, forgiven_bursts=2.0)
    assert none_left == pytest.approx(seconds_needed(verdict(4000, 0, burst=12.0), 200.0), rel=1e-6)


@pytest.mark.parametrize("never", [verdict(1000, 10), verdict(1000, 500), verdict(1000, 0, vif=math.nan)])
def test_a_share_that_is_not_below_what_is_allowed_is_never_kept(never):
    assert seconds_needed(never, 200.0) == math.inf


def test_a_share_so_near_to_what_is_allowed_is_not_waited_for():
    assert seconds_needed(verdict(10_000_000, 99_999, burst=100.0), 200.0) == math.inf


@pytest.mark.parametrize(("rate_per_s", "burst"), [(10.0, 1.0), (1000.0, 12.5)])
@pytest.mark.parametrize(("quantile", "confidence"), [(0.99, 0.95), (0.9, 0.95), (0.99, 0.8)])
def test_the_shortest_run_is_that_in_which_no_violation_is_just_few_enough(
    rate_per_s, burst, quantile, confidence
):
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
        least_s=lambda: 0.0,
        stop=lambda: False,
        on_attempt=id,
    )


P99, P50 = LatencyLimit(quantile=0.99, limit_ms=40.0), LatencyLimit(quantile=0.5, limit_ms=800.0)


def test_a_run_has_five_times_the_shortest_that_decides_every_limit_with_its_share_of_the_confidence():
    both = confirming(P99, P50)
    assert both.warmup_s == pytest.approx(2.4)  # three of the longer limit
    of_p99_s, of_p50_s = (shortest_s(limit, 1000.0, 0.975) for limit in (P99, P50))
    assert of_p50_s < of_p99_s
    assert both.patience_s(1000.0) == pytest.approx(5 * (2.4 + of_p99_s))
    alone = confirming(P99, confidence=0.9)
    assert alone.warmup_s == 1.0
    assert alone.patience_s(1000.0) == pytest.approx(5 * (1.0 + shortest_s(P99, 1000.0, 0.9)))


@pytest.mark.parametrize(
    ("n", "rate_per_s", "burst", "least_bursts", "said"),
    [
        (199, 100.0, 1.0, 0.5, False),  # less than two seconds
        (200, 100.0, 1.0, 0.5, True),
        (299, 100.0, 6.0, 0.5, False),  # half a burst of six is allowed among 300
        (300, 100.0, 6.0, 0.5, True),
        (300, 100.0, 12.0, 0.25, True),
        (299, 100.0, 12.0, 0.25, False),
        (799, 100.0, 90.0, 0.5, False),  # no longer bursts are waited for than sixteen of the least, of one here
        (800, 100.0, 90.0, 0.5, True),
        (1599, 200.0, 90.0, 0.5, False),  # of two here
        (1600, 200.0, 90.0, 0.5, True),
    ],
)
def test_what_is_hopeless_is_not_said_before_bursts_have_been_allowed(n, rate_per_s, burst, least_bursts, said):
    assert is_hopeless(verdict(n, n, burst=burst), rate_per_s, 1e9, least_bursts) is said


def test_a_run_is_hopeless_if_it_takes_longer_than_is_left_though_one_burst_was_bad_luck():
    seen = verdict(4000, 36, burst=12.0)
    needed_s = seconds_needed(verdict(4000, 24, burst=12.0), 200.0)
    assert not is_hopeless(seen, 200.0, 1.001 * needed_s, 0.5)
    assert is_hopeless(seen, 200.0, 0.999 * needed_s, 0.5)


def test_a_run_ends_when_it_was_hopeless_for_a_second_at_least_and_for_a_tenth_of_its_time():
    """One request in fifty is late, here and there; the limit asks for fewer than one in a hundred."""
    times = np.arange(0, 40, 0.01)
    late = np.arange(len(times)) % 50 == 7
    log = log_of(times, times + np.where(late, 0.2, 0.001))
    ended_at = []

    def measure(rate_per_s, duration_s, seed, watch):
        for seconds in np.arange(0.5, 40, 0.5):
            rows = int(100 * seconds) + 1
            if watch(dataclasses.replace(log, **{name: getattr(log, name)[:rows] for name in FIELDS})):
                ended_at.append(seconds)
                return Probe(log=log, overloaded=False, problems=("end",) * (len(ended_at) > 2))
        raise AssertionError("it was never given up")

    confirm(measure, 100.0 / FIRST_SHARE, limit_ms=20, budget_s=60.0, seed=1, floor_per_s=99.0)
    # Two seconds after the first, which is left out, it is judged: at 3.0 it had been hopeful until 2.5.
    assert ended_at == [4.0]


FIELDS = ("scheduled_ns", "sent_ns", "done_ns", "outcome")


def attempt_of(answer: str, *, served_per_s: float = math.inf, rate_per_s: float = 1000.0, **changes) -> Attempt:
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
        (["broken"], 0.92),
        (["undecided", "broken"], 0.92),
        (["broken", "broken"], 0.92**2),
        (["broken"] * 4, 0.92**4),
        (["broken"] * 5, 0.7),
        (["undecided"], 0.96),
        (["broken", "undecided"], 0.96),
        (["undecided", "undecided"], 0.96**2),
        (["undecided"] * 3, 0.96**3),
        (["undecided"] * 5, 0.85),
    ],
)
def test_rates_that_fail_in_a_row_are_further_apart_each_time(answers, step):
    assert _step_down([attempt_of(answer) for answer in answers], 1e9) == pytest.approx(step)


def test_after_a_rate_that_was_far_too_high_nine_tenths_of_what_was_served_are_tried():
    assert _step_down([attempt_of("broken", served_per_s=500.0)], 1e9) == pytest.approx(0.45)
    assert _step_down([attempt_of("broken", served_per_s=1100.0)], 1e9) == pytest.approx(0.92)
    assert _step_down([attempt_of("undecided", served_per_s=500.0)], 1e9) == pytest.approx(0.96)


@pytest.mark.parametrize(("times", "steps"), [(0.9, 1), (1.0, 1), (2.0, 2), (4.0, 3), (100.0, 3.98)])
def test_the_less_is_left_the_lower_is_tried(times, steps):
    """`times` as long as half of what is left would a rate without violations need; 0.85 at the least."""
    needed_s = seconds_needed(verdict(0, 0, burst=12.0), 1000.0)
    found = _step_down([attempt_of("undecided")], 2 * needed_s / times)
    assert found == pytest.approx(max(0.85, 0.96**steps), rel=1e-3)


def test_of_several_limits_the_one_that_needs_longest_says_how_much_lower():
    slow = verdict(4000, 30, burst=48.0)
    needed_s = seconds_needed(verdict(0, 0, burst=48.0), 1000.0)
    assert _step_down([attempt_of("undecided", others=(slow,))], needed_s) == pytest.approx(0.96**2, rel=1e-3)
    assert _step_down([attempt_of("undecided")], needed_s) == pytest.approx(0.96, rel=1e-3)
    unknown = verdict(0, 0, vif=math.nan)
    assert _step_down([attempt_of("undecided", others=(unknown,))], needed_s) == 0.96


def test_every_attempt_has_fresh_arrivals():
    seeds = []

    def measure(rate_per_s, duration_s, seed, watch):
        seeds.append(seed)
        return SimulatedLoad(BATCHING_GPU)(rate_per_s, duration_s, seed, watch)

    confirm(measure, 1.3 * KNEE, limit_ms=50, budget_s=60.0, seed=5)
    assert seeds[0] == 5
    assert len(set(seeds)) == len(seeds) > 1
