"""Which trials are confirmed, in which order, at which rates and in which time, and what the answer is then."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from certifications import DEFAULT, LOADING_S, SLO, NotedBench, bench, ended, slower, tried
from recommendations import measurement

from loadgen.spec.limits import LatencyLimit
from model_repo.spec import ServingConfig
from search.certification.certifier import LEAST_CERTIFY_S
from search.certification.certify import (
    BASELINE_AT_LEAST_S,
    LAST_RESORT_S,
    LAST_RESORTS,
    LOWER_EACH_TIME,
)
from search.certification.first_rate import LAST_RESORT_SHARE
from search.records.trial import GpuRecord, MeasurementRecord, ReplayRecord
from search.study.drift import LONGER_S, speed_variation_of
from search.trials import events
from search.trials.certificate_time import confidence_of_a_run, least_certificate_s, least_s
from search.trials.objective import Objective
from search.trials.trial import Trial

GIB = 2**30


@pytest.mark.parametrize("total_s", [40.0, 300.0, 900.0])
def test_the_best_is_confirmed_twice_and_the_default_once(total_s: float, tmp_path: Path) -> None:
    default, given = tried(tmp_path, DEFAULT, 0, 700.0), bench()
    found = ended(tmp_path, given, default, tried(tmp_path, 8, 1), total_s=total_s)
    first, second, third = given.runs
    assert given.batches == [8, 8, DEFAULT]
    assert found.winner.number == 1
    found.assert_confirmed_twice()
    found.assert_within_budget()
    assert LAST_RESORT_SHARE * 1050.0 <= first.rate_per_s == second.rate_per_s < 1050.0
    assert first.most_s < total_s, "it leaves time for a second run"
    assert LAST_RESORT_SHARE * 700.0 <= third.rate_per_s < 700.0
    assert third.most_s <= max(BASELINE_AT_LEAST_S, first.load_s + second.load_s)
    assert found.baseline is not None
    assert found.baseline.certificate is not None
    assert (found.baseline.number, found.baseline.certificate.runs) == (0, 1)
    assert len({run.seed for run in given.runs}) == 3
    assert found.notes == []


def test_the_default_gets_no_more_time_than_the_winner_took(tmp_path: Path) -> None:
    """Each confirmation of the winner meets a client that is late three times."""
    given = bench(late_runs=(0, 1, 2, 4, 5, 6))
    given.spent.load_s = 20.0
    found = ended(tmp_path, given, tried(tmp_path, DEFAULT, 0, 700.0), tried(tmp_path, 8, 1))
    *of_winner, of_default = given.runs
    assert {run.batch for run in of_winner} == {8}
    assert of_default.batch == DEFAULT
    assert BASELINE_AT_LEAST_S < of_default.most_s <= sum(run.load_s for run in of_winner)
    found.assert_confirmed_twice()
    found.assert_within_budget()


def test_without_a_candidate_nothing_is_loaded(tmp_path: Path) -> None:
    given = bench()
    none = (tried(tmp_path, 8, 1, None, state="failed"), tried(tmp_path, 16, 2, 0.0, state="infeasible"))
    assert ended(tmp_path, given, *none).certified is None
    assert ended(tmp_path, given, *none, stop=lambda: True).certified is None
    assert given.batches == []


def test_a_default_that_is_the_best_is_compared_with_itself(tmp_path: Path) -> None:
    given = bench()
    found = ended(tmp_path, given, tried(tmp_path, DEFAULT, 0), tried(tmp_path, 8, 1, 900.0))
    assert given.batches == [DEFAULT, DEFAULT]
    assert found.baseline == found.winner
    found.assert_confirmed_twice()


def test_a_default_of_a_higher_rate_is_the_answer_after_a_second_run(tmp_path: Path) -> None:
    """The winner is slower from its restart on."""
    given = bench()
    given.service_s = lambda config, size: 0.005 * (2.0 if given.restarts and config.max_batch_size == 8 else 1.0)
    found = ended(tmp_path, given, tried(tmp_path, DEFAULT, 0, 1000.0), tried(tmp_path, 8, 1))
    assert given.batches == [8, 8, DEFAULT, DEFAULT]
    assert found.winner == found.baseline
    assert found.winner.number == 0
    found.assert_confirmed_twice()
    assert found.codes == [("default_is_better", 1)]


def test_a_default_of_the_same_rate_is_not_the_answer(tmp_path: Path) -> None:
    """At such rates a few seconds have enough requests for the same share of the estimate."""
    given = bench(service_s=lambda config, size: 0.0005)
    found = ended(tmp_path, given, tried(tmp_path, 8, 1, 9000.0), tried(tmp_path, DEFAULT, 0, 9000.0))
    assert found.winner.number == 1
    assert found.baseline is not None
    assert found.baseline.certificate is not None
    assert found.certificate.rate_per_s == found.baseline.certificate.rate_per_s
    assert given.batches == [8, 8, DEFAULT]


def test_the_baseline_is_the_latest_trial_of_the_default(tmp_path: Path) -> None:
    """After the machine has changed its speed, it was tried again."""
    old, new = tried(tmp_path, DEFAULT, 0, 1040.0), tried(tmp_path, DEFAULT, 2, 700.0, machine_epoch=1)
    found = ended(tmp_path, bench(), old, tried(tmp_path, 8, 3, machine_epoch=1), new)
    assert found.baseline is not None
    assert found.baseline.number == 2


@pytest.mark.parametrize("state", ["pruned", "failed", "infeasible"])
def test_a_default_without_an_estimate_stays_as_it_is(state: Any, tmp_path: Path) -> None:
    given, default = bench(), tried(tmp_path, DEFAULT, 0, None, state=state)
    found = ended(tmp_path, given, default, tried(tmp_path, 8, 1))
    assert found.baseline == default
    assert given.batches == [8, 8]


def test_no_default_no_baseline(tmp_path: Path) -> None:
    found = ended(tmp_path, bench(), tried(tmp_path, 8, 1))
    assert found.baseline is None


@pytest.mark.parametrize(("rate_per_s", "loaded"), [(60.0, True), (5.0, False)])
def test_a_default_too_slow_for_its_seconds_is_not_loaded(rate_per_s: float, loaded: bool, tmp_path: Path) -> None:
    """At 3/s a run without a violation takes over a minute."""
    given, default = bench(), tried(tmp_path, DEFAULT, 0, rate_per_s)
    slo = SLO.model_copy(update={"limits": (replace(SLO.first, quantile=0.98),)})
    found = ended(tmp_path, given, default, tried(tmp_path, 8, 1), slo=slo)
    assert (given.batches[-1] == DEFAULT) is loaded
    assert found.baseline is not None
    assert loaded or found.baseline == default


def test_a_default_that_fails_costs_only_its_certificate(tmp_path: Path) -> None:
    default = tried(tmp_path, DEFAULT, 0, 700.0)
    given = bench(faults=lambda config: "out of memory" if config == default.served else None)
    found = ended(tmp_path, given, default, tried(tmp_path, 8, 1))
    assert found.baseline == default
    assert found.winner.number == 1
    assert found.codes == [("certification_failed", 0)]


def test_all_trials_are_candidates_if_none_has_a_rate_at_the_present_speed(tmp_path: Path) -> None:
    earlier, now = tried(tmp_path, 8, 1), tried(tmp_path, 16, 2, None, state="failed", machine_epoch=1)
    assert ended(tmp_path, bench(), earlier, now).winner.number == 1
    now = tried(tmp_path, 16, 2, 800.0, machine_epoch=1)
    assert ended(tmp_path, bench(), earlier, now).winner.number == 2


@pytest.mark.parametrize(("runner_up_per_s", "number"), [(1000.0, 2), (800.0, 1)])
def test_a_candidate_gives_way_if_the_next_promises_more(
    runner_up_per_s: float, number: int, tmp_path: Path
) -> None:
    """The first serves 910/s instead of the 1,050/s that were estimated."""
    given = bench(service_s=slower(b8=8 / 0.005 / 910))
    found = ended(tmp_path, given, tried(tmp_path, 8, 1), tried(tmp_path, 16, 2, runner_up_per_s))
    assert found.winner.number == number
    first, second, *_ = given.runs
    assert (first.batch, second.batch) == (8, 16 if number == 2 else 8)
    assert second.rate_per_s < (1000.0 if number == 2 else 910.0)
    found.assert_within_budget()


def test_a_last_resort_gets_all_time_left_below_the_rate_that_was_served(tmp_path: Path) -> None:
    given = bench(service_s=slower(b8=8 / 0.005 / 400))
    found = ended(tmp_path, given, tried(tmp_path, 8, 1))
    first, resort, _ = given.after_each_load
    assert first.most_s < 0.9 * found.all_left_s(first), "it leaves time for another candidate"
    assert resort.most_s == pytest.approx(found.all_left_s(resort), abs=LOADING_S)
    assert all(run.rate_per_s < 400.0 for run in given.runs[1:])
    found.assert_confirmed_twice()
    found.assert_within_budget()


def test_a_rate_of_one_request_per_second_is_tried_as_any_other(tmp_path: Path) -> None:
    slo = SLO.model_copy(update={"limits": (LatencyLimit(limit_ms=5000.0, quantile=0.9),)})
    given, slow = bench(service_s=lambda config, size: 0.5, limit_ms=5000.0), tried(tmp_path, 8, 1, 1.0)
    found = ended(tmp_path, given, slow, slo=slo)
    assert LAST_RESORT_SHARE <= given.runs[0].rate_per_s < 1.0
    assert given.runs[0].most_s < found.budget.total_s
    found.assert_within_budget()


def test_the_last_resort_is_the_candidate_that_served_most(tmp_path: Path) -> None:
    given = bench(service_s=slower(b8=8 / 0.005 / 500, b2=2 / 0.005 / 560))
    found = ended(tmp_path, given, tried(tmp_path, 8, 1), tried(tmp_path, 2, 2, 1000.0))
    assert given.batches == [8, 2, 2, 2]
    assert given.runs[2].rate_per_s < 560.0
    assert found.winner.number == 2


@pytest.mark.parametrize("total_s", [30.0, 45.0, 60.0, 80.0, 900.0])
def test_last_resorts_are_each_lower_down_to_a_floor_within_the_budget(total_s: float, tmp_path: Path) -> None:
    given = bench(late_runs=range(10_000))
    found = ended(tmp_path, given, tried(tmp_path, 8, 1), total_s=total_s)
    assert found.certified is None
    found.assert_within_budget()
    rates = [run.rate_per_s for run in given.after_each_load]
    assert rates == sorted(set(rates), reverse=True)
    assert {run.rate_per_s for run in given.runs} == set(rates), "runs are repeated at their rate"
    floor_per_s = LAST_RESORT_SHARE * LOWER_EACH_TIME ** (LAST_RESORTS - 1) * 1050.0
    assert 1050.0 > rates[0] >= rates[-1] >= 0.999 * floor_per_s
    assert 2 <= len(rates) <= 1 + LAST_RESORTS
    assert total_s < 900.0 or len(rates) == 1 + LAST_RESORTS
    for run in given.after_each_load[2:]:
        assert found.all_left_s(run) >= LAST_RESORT_S - LOADING_S


def test_a_user_who_asks_to_finish_gets_no_other_last_resort(tmp_path: Path) -> None:
    given = bench(late_runs=range(10_000))
    stop = lambda: len(given.loaded) > 1  # noqa: E731
    assert ended(tmp_path, given, tried(tmp_path, 8, 1), stop=stop).certified is None
    assert given.batches == [8, 8]


@pytest.mark.parametrize(("more_s", "loads"), [(-0.1, 0), (0.0, 1)])
def test_with_too_little_time_for_a_run_nothing_is_loaded(more_s: float, loads: int, tmp_path: Path) -> None:
    given = bench()
    ended(tmp_path, given, tried(tmp_path, 8, 1), total_s=LEAST_CERTIFY_S + more_s)
    assert len(given.batches) == loads


def test_time_lost_to_contention_is_added_before_the_last_resort(tmp_path: Path) -> None:
    given = bench(late_runs=range(10_000), taken_cores=lambda load_s: 1.0)
    found = ended(tmp_path, given, tried(tmp_path, 8, 1), total_s=60.0)
    (extended,) = (event for event in found.seen if isinstance(event, events.BudgetExtended))
    assert 0.0 < extended.by_s == found.budget.extended_s
    _, resort, *_ = given.after_each_load
    assert resort.most_s > 60.0 - resort.elapsed_s + LOADING_S
    found.assert_within_budget()


def test_a_rate_too_low_for_a_share_of_the_time_is_left_to_the_last_resort(tmp_path: Path) -> None:
    """The first confirmation may not take all of the time, and less decides nothing at so low a rate."""
    confidence, given = confidence_of_a_run(0.8), bench()
    total_s = 1.1 * least_s(LAST_RESORT_SHARE * 20.0, SLO, confidence)
    found = ended(tmp_path, given, tried(tmp_path, 8, 1, 20.0), tried(tmp_path, 16, 2, 19.0), total_s=total_s)
    (run, *_) = given.runs
    assert run.batch == 8
    assert run.rate_per_s == pytest.approx(LAST_RESORT_SHARE * 20.0)
    assert run.most_s == pytest.approx(found.all_left_s(run), abs=LOADING_S)
    found.assert_within_budget()


def test_a_lower_confidence_is_certified_if_the_time_is_short_unless_stopped(tmp_path: Path) -> None:
    total_s = 1.3 * least_certificate_s(LAST_RESORT_SHARE * 20.0, SLO, 0.8)
    found = ended(tmp_path / "in time", bench(), tried(tmp_path, 8, 1, 20.0), total_s=total_s)
    assert found.codes == [("lower_confidence", None)]
    assert (found.certificate.runs, found.certificate.confidence) == (2, 0.8)
    given = bench()
    hurried = ended(tmp_path / "hurried", given, tried(tmp_path, 8, 1, 20.0), total_s=total_s, stop=lambda: True)
    assert hurried.codes == []


def over_memory(*batches: int, after_restart: bool = False) -> NotedBench:
    given = bench()

    def memory(config: ServingConfig) -> int:
        over = config.max_batch_size in batches and (given.restarts > 0 or not after_restart)
        return 3 * GIB if over else GIB

    given.memory = memory
    return given


@pytest.mark.parametrize("after_restart", [False, True])
def test_a_candidate_over_the_memory_limit_gives_way_to_the_next(after_restart: bool, tmp_path: Path) -> None:
    given = over_memory(8, after_restart=after_restart)
    slo = SLO.model_copy(update={"max_memory_bytes": 2 * GIB})
    found = ended(tmp_path, given, tried(tmp_path, 8, 1), tried(tmp_path, 16, 2, 1000.0), slo=slo)
    assert found.winner.number == 2
    assert given.batches == ([8, 8, 16, 16] if after_restart else [8, 16, 16])
    assert found.codes == [("over_memory", 1)]


def test_no_candidate_is_the_answer_if_all_are_over_the_memory_limit(tmp_path: Path) -> None:
    given = over_memory(8, 16, after_restart=True)
    slo = SLO.model_copy(update={"max_memory_bytes": 2 * GIB})
    trials = (tried(tmp_path, 8, 1), tried(tmp_path, 16, 2, 1000.0))
    assert ended(tmp_path, given, *trials, slo=slo).certified is None


def test_a_candidate_whose_server_fails_gives_way_to_the_next(tmp_path: Path) -> None:
    given = bench(faults=lambda config: "no backend\nits log" if config.max_batch_size == 8 else None)
    found = ended(tmp_path, given, tried(tmp_path, 8, 1), tried(tmp_path, 16, 2, 1000.0))
    assert found.winner.number == 2
    assert found.codes == [("certification_failed", 1)]
    assert given.spent.loading_s == 3 * LOADING_S


def replayed(folder: Path, batch: int, number: int, rate_per_s: float, slowdown: float) -> Trial:
    replay = ReplayRecord(slowdown=slowdown, rate_per_s=rate_per_s, error=0.01)
    return tried(folder, batch, number, rate_per_s, replay=replay)


def test_the_best_on_an_unsteady_machine_is_that_at_its_mean_speed(tmp_path: Path) -> None:
    """The first met the machine at its fastest."""
    trials = (
        replayed(tmp_path, 8, 1, 1100.0, 0.6),
        replayed(tmp_path, 16, 2, 1000.0, 1.0),
        replayed(tmp_path, 2, 3, 300.0, 1.6),
    )
    variation = speed_variation_of(trials)
    given = bench()
    found = ended(tmp_path, given, *trials)
    assert found.winner.number == 2
    assert given.batches == [16, 16]
    assert given.runs[0].rate_per_s < variation.margin * variation.estimate(trials[1])
    assert found.codes[0] == ("unstable_speed", None)
    assert found.notes[0].warning
    assert variation.text is not None
    assert variation.text in found.notes[0].text
    assert found.certificate.seconds > 2 * LONGER_S


LATENCY = Objective(name="latency", rate_per_s=500.0)


def at_500(latency_ms: float) -> MeasurementRecord:
    return measurement(rate_per_s=500.0, latency_p99_ms=latency_ms)


def test_the_lowest_latency_is_confirmed_at_the_rate_that_was_asked_for(tmp_path: Path) -> None:
    fast = tried(tmp_path, 2, 1, 600.0, measurement=at_500(9.0))
    slow = tried(tmp_path, 8, 2, 1050.0, measurement=at_500(12.0))
    given = bench(service_s=slower(b2=0.5))
    found = ended(tmp_path, given, slow, fast, objective=LATENCY)
    assert found.winner.number == 1
    assert [run.rate_per_s for run in given.runs] == [pytest.approx(500.0)] * 2


def test_a_default_of_lower_latency_is_the_answer(tmp_path: Path) -> None:
    given = bench(service_s=slower(b4=0.5))
    best = tried(tmp_path, 8, 1, measurement=at_500(9.0))
    default = tried(tmp_path, DEFAULT, 0, measurement=at_500(12.0))
    found = ended(tmp_path, given, default, best, objective=LATENCY)
    assert found.winner.number == 0
    assert found.codes == [("default_is_better", 1)]


def test_the_next_candidate_is_no_reason_to_give_way_if_energy_counts(tmp_path: Path) -> None:
    """A configuration that takes more energy may well have the higher rate."""

    def of_power(power_w: float) -> MeasurementRecord:
        gpu = GpuRecord(
            utilization=None, memory_used_bytes=None, power_w=power_w, energy_per_1000_inferences_j=None
        )
        return measurement(gpu=gpu)

    given = bench(service_s=slower(b8=8 / 0.005 / 910))
    least = tried(tmp_path, 8, 1, 1050.0, measurement=of_power(50.0))
    more = tried(tmp_path, 16, 2, 1100.0, measurement=of_power(90.0))
    found = ended(tmp_path, given, more, least, objective=Objective(name="energy"))
    assert found.winner.number == 1
    assert given.runs[1].batch == 8
    assert given.runs[1].rate_per_s < 910.0
