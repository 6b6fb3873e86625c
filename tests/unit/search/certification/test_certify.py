"""Who is put to the proof, in which order, at which rate and for how long, and what the answer is then."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from certifications import DEFAULT, SLO, NotedBench, bench, caveat_of, ended, slower, tried
from recommendations import measurement

from loadgen.spec.limits import LatencyLimit
from model_repo.spec import ServingConfig
from search.certification.first_rate import first_share
from search.records.trial import GpuRecord, MeasurementRecord, ReplayRecord
from search.study.drift import LONGER_S, speed_variation_of
from search.trials import events
from search.trials.certificate_time import least_certificate_s
from search.trials.objective import Objective
from search.trials.trial import Trial

GIB = 2**30


def test_the_best_is_confirmed_twice_and_then_the_default(tmp_path: Path) -> None:
    best, default, given = tried(tmp_path, 8, 1), tried(tmp_path, DEFAULT, 0, 700.0), bench()
    found = ended(tmp_path, given, default, best)
    first, second, third = given.runs
    assert given.batches == [8, 8, DEFAULT]
    assert [run.restarts for run in given.runs] == [0, 1, 1]
    assert first.rate_per_s == second.rate_per_s == pytest.approx(0.93 * 1050.0)
    assert first.most_s == 150.0  # half of what was left
    assert second.most_s == pytest.approx(0.6 * (300.0 - 1.0 - second.spent_s))
    one = found.winner.certificate
    assert one is not None
    assert (found.winner.number, one.runs, one.confidence, one.caveat) == (1, 2, 0.95, None)
    # Half of what the winner took is less than a quarter of a minute.
    assert third.most_s == 15.0
    assert third.rate_per_s == pytest.approx(700.0 * first_share(default, SLO, 15.0))
    assert found.baseline is not None
    assert found.baseline.certificate is not None
    assert (found.baseline.number, found.baseline.certificate.runs) == (0, 1)
    assert len({run.seed for run in given.runs}) == 3
    assert found.notes == []


def test_the_default_gets_half_of_what_the_winner_took(tmp_path: Path) -> None:
    """Each of its confirmations meets a client that is late three times."""
    given = bench(late_runs=(0, 1, 2, 4, 5, 6))
    given.spent.load_s = 20.0
    found = ended(tmp_path, given, tried(tmp_path, DEFAULT, 0, 700.0), tried(tmp_path, 8, 1))
    assert [run.batch for run in given.runs] == [8] * 8 + [DEFAULT]
    assert given.runs[-1].most_s == 0.5 * (given.runs[-1].spent_s - 20.0)
    assert given.runs[-1].most_s > 15.0
    assert caveat_of(found) is None


def test_without_a_candidate_nothing_is_loaded(tmp_path: Path) -> None:
    given = bench()
    none = (tried(tmp_path, 8, 1, None, state="failed"), tried(tmp_path, 16, 2, 0.0, state="infeasible"))
    assert ended(tmp_path, given, *none).certified is None
    assert ended(tmp_path, given, *none, stop=lambda: True).certified is None
    assert given.batches == []


def test_where_the_default_is_the_best_it_is_compared_with_itself(tmp_path: Path) -> None:
    given = bench()
    found = ended(tmp_path, given, tried(tmp_path, DEFAULT, 0), tried(tmp_path, 8, 1, 900.0))
    assert given.batches == [DEFAULT, DEFAULT]
    assert found.baseline == found.winner
    assert found.winner.certificate is not None
    assert found.winner.certificate.runs == 2


def test_a_default_that_keeps_more_is_the_answer_after_a_second_run_of_its_own(tmp_path: Path) -> None:
    """The winner is slower from its restart on."""
    given = bench()
    given.service_s = lambda config, size: 0.005 * (2.0 if given.restarts and config.max_batch_size == 8 else 1.0)
    found = ended(tmp_path, given, tried(tmp_path, DEFAULT, 0, 1000.0), tried(tmp_path, 8, 1))
    assert given.batches == [8, 8, DEFAULT, DEFAULT]
    assert found.winner == found.baseline
    assert found.winner.certificate is not None
    assert (found.winner.number, found.winner.certificate.runs) == (0, 2)
    assert found.notes[-1] == "The default configuration is certified for more than trial 1, so it is the answer."


def test_a_default_that_keeps_just_as_much_is_not_the_answer(tmp_path: Path) -> None:
    given = bench()
    found = ended(tmp_path, given, tried(tmp_path, 8, 1, 1200.0), tried(tmp_path, DEFAULT, 0, 1200.0))
    assert found.winner.number == 1
    assert found.winner.certificate is not None
    assert found.baseline is not None
    assert found.baseline.certificate is not None
    assert found.winner.certificate.rate_per_s == found.baseline.certificate.rate_per_s
    assert given.batches == [8, 8, DEFAULT]


def test_the_latest_default_is_compared_with(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(("rate_per_s", "loaded"), [(20.0, True), (5.0, False)])
def test_a_default_too_slow_for_its_seconds_is_not_put_to_the_proof(
    rate_per_s: float, loaded: bool, tmp_path: Path
) -> None:
    """At 3/s a run without a violation takes over a minute; 15 s decide 20/s, just."""
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
    assert found.notes == ["Trial 0 failed while it was certified: out of memory"]


def test_where_nothing_was_found_at_the_speed_of_now_all_trials_are_candidates(tmp_path: Path) -> None:
    earlier, now = tried(tmp_path, 8, 1), tried(tmp_path, 16, 2, None, state="failed", machine_epoch=1)
    assert ended(tmp_path, bench(), earlier, now).winner.number == 1
    now = tried(tmp_path, 16, 2, 800.0, machine_epoch=1)
    assert ended(tmp_path, bench(), earlier, now).winner.number == 2


@pytest.mark.parametrize(("runner_up_per_s", "number"), [(1000.0, 2), (800.0, 1)])
def test_a_candidate_gives_way_when_the_next_promises_more(
    runner_up_per_s: float, number: int, tmp_path: Path
) -> None:
    """The first serves 910/s where 1,050/s were estimated; the next is to keep 0.93 of its own estimate."""
    given = bench(service_s=slower(b8=8 / 0.005 / 910))
    found = ended(tmp_path, given, tried(tmp_path, 8, 1), tried(tmp_path, 16, 2, runner_up_per_s))
    assert found.winner.number == number
    assert [run.batch for run in given.runs][:2] == [8, 16 if number == 2 else 8]
    assert given.runs[1].rate_per_s == pytest.approx(930.0 if number == 2 else 0.9 * 910, rel=0.02)


def test_no_candidate_falls_below_what_a_last_resort_would_try(tmp_path: Path) -> None:
    """It serves 650/s: 0.9 of that are below 0.6 of the estimate, where all that is left is for it."""
    given = bench(service_s=slower(b8=8 / 0.005 / 650))
    found = ended(tmp_path, given, tried(tmp_path, 8, 1))
    first, resort, *_ = given.runs
    assert given.batches == [8, 8, 8]
    assert resort.rate_per_s == pytest.approx(0.9 * 650, rel=0.02)
    assert first.most_s == 150.0
    assert resort.most_s == 300.0 - 1.0 - resort.spent_s
    assert found.winner.certificate is not None
    assert found.winner.certificate.runs == 2


def test_a_model_of_one_request_a_second_is_tried_as_near_to_its_estimate_as_any(tmp_path: Path) -> None:
    slo = SLO.model_copy(update={"limits": (LatencyLimit(limit_ms=5000.0, quantile=0.9),)})
    given, slow = bench(service_s=lambda config, size: 0.5, limit_ms=5000.0), tried(tmp_path, 8, 1, 1.0)
    ended(tmp_path, given, slow, slo=slo)
    assert given.runs[0].rate_per_s == pytest.approx(first_share(slow, slo, 150.0))
    assert given.runs[0].most_s == 150.0


def test_the_last_resort_is_the_candidate_that_served_most(tmp_path: Path) -> None:
    given = bench(service_s=slower(b8=8 / 0.005 / 500, b2=2 / 0.005 / 560))
    found = ended(tmp_path, given, tried(tmp_path, 8, 1), tried(tmp_path, 2, 2, 1000.0))
    assert given.batches == [8, 2, 2, 2]
    assert given.runs[2].rate_per_s == pytest.approx(0.9 * 560, rel=0.02)
    assert found.winner.number == 2


def test_last_resorts_are_three_each_lower_while_nothing_can_be_trusted(tmp_path: Path) -> None:
    given = bench(late_runs=range(10_000))
    found = ended(tmp_path, given, tried(tmp_path, 8, 1))
    assert found.certified is None
    assert given.batches == [8] * 4
    rates = list(dict.fromkeys(round(run.rate_per_s, 1) for run in given.runs))
    assert rates == [976.5, 630.0, 441.0, 308.7]


def test_another_last_resort_takes_a_quarter_of_a_minute_and_nobody_who_asks_to_finish(tmp_path: Path) -> None:
    given = bench(late_runs=range(10_000))
    assert ended(tmp_path, given, tried(tmp_path, 8, 1), total_s=60.0).certified is None
    assert given.batches == [8, 8]
    given = bench(late_runs=range(10_000))
    stop = lambda: len(given.loaded) > 1  # noqa: E731
    assert ended(tmp_path, given, tried(tmp_path, 8, 1), stop=stop).certified is None
    assert given.batches == [8, 8]


@pytest.mark.parametrize(("total_s", "loads"), [(5.9, 0), (6.0, 1)])
def test_with_less_than_six_seconds_nothing_is_tried(total_s: float, loads: int, tmp_path: Path) -> None:
    given = bench()
    ended(tmp_path, given, tried(tmp_path, 8, 1), total_s=total_s)
    assert len(given.batches) == loads


def test_what_neighbours_took_is_made_up_for_before_the_last_resort(tmp_path: Path) -> None:
    given = bench(late_runs=range(10_000), taken_cores=lambda load_s: 1.0)
    found = ended(tmp_path, given, tried(tmp_path, 8, 1), total_s=60.0)
    (extended,) = (event for event in found.seen if isinstance(event, events.BudgetExtended))
    assert 25.0 < extended.by_s <= 30.0
    resort = next(run for run in given.runs if run.rate_per_s == pytest.approx(630.0))
    assert resort.most_s > 50.0


def test_rates_too_low_for_half_of_the_time_are_left_to_the_last_resort(tmp_path: Path) -> None:
    """Half a minute decides nothing at 12/s where it is half of what is left, but all of it may."""
    given = bench()
    ended(tmp_path, given, tried(tmp_path, 8, 1, 20.0), tried(tmp_path, 16, 2, 19.0), total_s=26.0)
    assert given.batches[0] == 8
    assert given.runs[0].rate_per_s == pytest.approx(0.6 * 20.0)
    assert given.runs[0].most_s == 26.0


def test_time_too_short_for_the_confidence_is_enough_for_a_lower_one_unless_it_is_to_end_at_once(
    tmp_path: Path,
) -> None:
    total_s = 1.3 * least_certificate_s(12.0, SLO, 0.8)
    text = "The time is too short for 95 % confidence: 80 % is certified."
    found = ended(tmp_path, bench(), tried(tmp_path, 8, 1, 20.0), total_s=total_s)
    assert found.notes[0] == text
    assert found.winner.certificate is not None
    assert (found.winner.certificate.runs, found.winner.certificate.confidence) == (2, 0.8)
    hurried = ended(tmp_path, bench(), tried(tmp_path, 8, 1, 20.0), total_s=total_s, stop=lambda: True)
    assert text not in hurried.notes


def over_memory(*batches: int, after_restart: bool = False) -> NotedBench:
    given = bench()

    def memory(config: ServingConfig) -> int:
        over = config.max_batch_size in batches and (given.restarts > 0 or not after_restart)
        return 3 * GIB if over else GIB

    given.memory = memory
    return given


@pytest.mark.parametrize("after_restart", [False, True])
def test_a_candidate_over_the_memory_gives_way_to_the_next(after_restart: bool, tmp_path: Path) -> None:
    given = over_memory(8, after_restart=after_restart)
    slo = SLO.model_copy(update={"max_memory_bytes": 2 * GIB})
    found = ended(tmp_path, given, tried(tmp_path, 8, 1), tried(tmp_path, 16, 2, 1000.0), slo=slo)
    assert found.winner.number == 2
    assert given.batches == ([8, 8, 16, 16] if after_restart else [8, 16, 16])
    assert "Trial 1 is not chosen" in found.notes[0]


def test_where_every_candidate_is_over_the_memory_none_is_the_answer(tmp_path: Path) -> None:
    given = over_memory(8, 16, after_restart=True)
    slo = SLO.model_copy(update={"max_memory_bytes": 2 * GIB})
    trials = (tried(tmp_path, 8, 1), tried(tmp_path, 16, 2, 1000.0))
    assert ended(tmp_path, given, *trials, slo=slo).certified is None


def test_a_candidate_whose_server_fails_gives_way_to_the_next(tmp_path: Path) -> None:
    given = bench(faults=lambda config: "no backend\nits log" if config.max_batch_size == 8 else None)
    found = ended(tmp_path, given, tried(tmp_path, 8, 1), tried(tmp_path, 16, 2, 1000.0))
    assert found.winner.number == 2
    assert found.notes == ["Trial 1 failed while it was certified: no backend"]
    assert given.spent.loading_s == 3.0


def replayed(folder: Path, batch: int, number: int, rate_per_s: float, slowdown: float) -> Trial:
    replay = ReplayRecord(slowdown=slowdown, rate_per_s=rate_per_s, error=0.01)
    return tried(folder, batch, number, rate_per_s, replay=replay)


def test_on_a_machine_that_is_not_steady_the_best_is_that_at_its_middle_speed(tmp_path: Path) -> None:
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
    assert given.runs[0].rate_per_s == pytest.approx(0.93 * variation.margin * variation.estimate(trials[1]))
    warning = next(event for event in found.seen if isinstance(event, events.Note))
    said = "lower rates are confirmed, for longer."
    assert warning == events.Note(text=f"While the search measured, {variation.text}: {said}", warning=True)
    assert found.winner.certificate is not None
    assert found.winner.certificate.seconds > 2 * LONGER_S


LATENCY = Objective(name="latency", rate_per_s=500.0)


def at_500(latency_ms: float) -> MeasurementRecord:
    return measurement(rate_per_s=500.0, latency_p99_ms=latency_ms)


def test_where_a_rate_was_asked_for_the_lowest_latency_is_confirmed_at_it(tmp_path: Path) -> None:
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
    assert found.notes == ["The default configuration does better than trial 1, so it is the answer."]


def test_for_the_least_energy_the_next_is_no_reason_to_give_way(tmp_path: Path) -> None:
    """What takes more energy may well keep more."""

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
    assert given.runs[1].rate_per_s == pytest.approx(0.9 * 910, rel=0.02)
