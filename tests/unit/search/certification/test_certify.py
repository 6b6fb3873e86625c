"""Which trials are confirmed, in which order, at which rates and in which time, and what the answer is then."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from certifications import (
    DEFAULT,
    EXECUTION_S,
    LOADING_S,
    PER_S,
    SLO,
    Ended,
    NotedBench,
    bench,
    ended,
    slower,
    tried,
)
from recommendations import measurement

from loadgen.spec.limits import LatencyLimit
from loadgen.spec.plan import Arrivals
from loadgen.statistics.confirm import MIN_RUN_S
from loadgen.statistics.probe import Probe
from model_repo.spec import ServingConfig
from search.certification.planner import Caveat
from search.certification.policy import POLICY
from search.records.confirmations import read_confirmations
from search.records.run_files import read_trials
from search.records.trial import GpuRecord, MeasurementRecord
from search.trials import events
from search.trials.bench import BenchFailed
from search.trials.objective import Energy, Latency
from search.workload import Workload

GIB = 2**30


def of_two(folder: Path, given: NotedBench, **options: Any) -> Ended:
    """Certify the best of a default and a better trial 1."""
    return ended(folder, given, tried(folder, DEFAULT, 0), tried(folder, 16, 1), **options)


def test_the_best_is_confirmed_on_two_servers_and_the_default_stays_an_estimate(
    tmp_path: Path,
) -> None:
    given = bench(taken_cores=lambda load_s: 0.5, memory=lambda config: GIB)
    found = of_two(tmp_path, given, total_s=60.0)
    assert set(given.batches) == {16}
    assert found.winner.number == 1
    found.assert_confirmed_twice()
    found.assert_within_budget()
    assert 0.8 * PER_S[16] < found.certificate.rate_per_s < PER_S[16]
    assert found.baseline.number == 0
    assert found.baseline.certificate is None
    assert found.winner.memory_bytes == GIB
    assert found.winner.measurement is not None
    first, last = found.certificate.first.latency_ms, SLO.first.limit_ms
    assert found.certificate.first.latency_low_ms < first < found.certificate.first.latency_high_ms <= last
    assert found.certificate.contention.watched_s == pytest.approx(found.certificate.seconds, abs=0.1)
    assert found.codes == []
    assert len({run.seed for run in given.runs}) == len(given.runs), "every run has fresh arrivals"
    lines = read_confirmations(tmp_path)
    reported = [event for event in found.seen if isinstance(event, events.ConfirmationEnded)]
    assert [one.rate_per_s for one in reported] == [line.rate_per_s for line in lines]
    assert [one.certificate is not None for one in reported] == [line.met for line in lines]
    beliefs = [line.believed for line in lines if line.believed is not None]
    assert len(beliefs) == len(lines)
    for one in beliefs:
        assert one.low_per_s < one.capacity_per_s < one.high_per_s
        assert one.covered_per_s <= 1.01 * one.capacity_per_s


def test_without_a_candidate_nothing_is_loaded(tmp_path: Path) -> None:
    given = bench()
    none = (tried(tmp_path, 8, 1, None, state="failed"), tried(tmp_path, 16, 2, 0.0, state="infeasible"))
    assert ended(tmp_path, given, *none).certified is None
    assert ended(tmp_path, given, *none, stop=lambda: True).certified is None
    assert given.batches == []


def test_a_default_that_is_the_best_is_compared_with_itself(tmp_path: Path) -> None:
    given = bench()
    found = ended(tmp_path, given, tried(tmp_path, DEFAULT, 0), tried(tmp_path, 8, 1, 600.0), total_s=60.0)
    assert set(given.batches) == {DEFAULT}
    assert found.baseline == found.winner
    found.assert_confirmed_twice()


def test_a_default_that_keeps_more_after_all_is_the_answer(tmp_path: Path) -> None:
    """The winner is slower from its restart on."""
    given = bench()
    given.service_s = lambda config, size: 0.01 * (4.0 if given.restarts and config.max_batch_size == 16 else 1.0)
    found = of_two(tmp_path, given)
    assert found.winner == found.baseline
    assert found.winner.number == 0


@pytest.mark.parametrize("state", ["pruned", "failed", None])
def test_a_default_without_an_estimate_stays_as_it_is(state: Any, tmp_path: Path) -> None:
    given, default = bench(), [tried(tmp_path, DEFAULT, 0, None, state=state)] if state else []
    found = ended(tmp_path, given, *default, tried(tmp_path, 16, 1), total_s=20.0)
    assert found.baseline == (default[0] if default else None)
    assert set(given.batches) == {16}


def test_the_store_and_the_winner_say_no_capacity_below_what_was_met(tmp_path: Path) -> None:
    """The trial met the machine while it was slow: the belief goes by its upper bound."""
    slow = tried(tmp_path, 16, 1, PER_S[16] / 4, rate_high_per_s=PER_S[16])
    found = ended(tmp_path, bench(), slow)
    met = [one.rate_per_s for one in read_confirmations(tmp_path) if one.met]
    assert max(met) > PER_S[16] / 4
    assert found.winner.rate_at_limit_per_s == max(met)
    assert [one.rate_at_limit_per_s for one in read_trials(tmp_path)] == [max(met)]


def test_a_machine_that_became_three_times_slower_still_gets_a_certificate(tmp_path: Path) -> None:
    """One run that is not met shows at which rate the next has to be."""
    given = bench(service_s=slower(b16=2.5))
    found = ended(tmp_path, given, tried(tmp_path, 16, 1), total_s=120.0)
    found.assert_confirmed_twice()
    assert found.certificate.rate_per_s < 16 / (2.5 * EXECUTION_S)
    assert sum(not line.met for line in read_confirmations(tmp_path)) <= 3
    found.assert_within_budget()


def test_a_client_that_always_sends_late_ends_it_without_a_certificate(tmp_path: Path) -> None:
    given = bench(late_runs=range(1000))
    found = of_two(tmp_path, given)
    assert found.certified is None
    assert {note.code for note in found.notes} == {"run_not_trusted"}
    assert {line.problems for line in read_confirmations(tmp_path)} == {("the client sent late",)}
    assert sum(run.load_s for run in given.runs) < 60.0


def test_runs_of_a_client_that_is_only_late_all_count_and_those_that_were_met_are_trusted(tmp_path: Path) -> None:
    given = bench(service_s=slower(b16=2.5), late_runs=range(1000), only_slower=True)
    found = ended(tmp_path, given, tried(tmp_path, 16, 1), total_s=120.0)
    found.assert_confirmed_twice()
    lines = read_confirmations(tmp_path)
    assert {bool(line.problems) for line in lines if line.met} == {False}
    assert {bool(line.problems) for line in lines if not line.met} == {True}
    assert found.certificate.rate_per_s < min(line.rate_per_s for line in lines if line.answer == "violated")


def test_a_client_that_is_late_above_a_rate_gets_a_lower_one_certified(tmp_path: Path) -> None:
    given = bench(client_per_s=0.5 * PER_S[16])
    found = ended(tmp_path, given, tried(tmp_path, 16, 1), total_s=120.0)
    found.assert_confirmed_twice()
    assert 0.7 * given.client_per_s < found.certificate.rate_per_s <= given.client_per_s


def test_a_rate_whose_second_runs_were_not_trusted_keeps_its_first_and_says_so(tmp_path: Path) -> None:
    given = bench(late_runs=range(1, 1000))
    found = ended(tmp_path, given, tried(tmp_path, 16, 1))
    assert (found.certificate.servers, found.certificate.caveat) == (1, Caveat.NOT_TRUSTED)
    assert found.certificate.rate_per_s == given.runs[0].rate_per_s
    assert found.certificate.confidence < SLO.confidence


def test_a_run_that_was_not_trusted_is_not_counted(tmp_path: Path) -> None:
    given = bench(late_runs=[0])
    found = ended(tmp_path, given, tried(tmp_path, 16, 1), total_s=60.0)
    found.assert_confirmed_twice()
    assert [note.code for note in found.notes] == ["run_not_trusted"]


@dataclass
class SlowRestart(NotedBench):
    """Its restarts take all the time that is left."""

    def restart(self) -> None:
        self.spent.loading_s += 100.0
        super().restart()


def test_a_restart_that_takes_the_time_that_was_left_keeps_the_first_run(tmp_path: Path) -> None:
    given = SlowRestart(service_s=bench().service_s)
    found = ended(tmp_path, given, tried(tmp_path, 16, 1), total_s=60.0)
    assert found.certificate.servers == 1
    assert given.restarts == 1
    assert len(given.runs) == 1


def test_if_the_restarted_server_fails_the_first_run_stands_with_a_caveat(tmp_path: Path) -> None:
    given = bench()
    given.faults = lambda config: "it died\nits log" if given.restarts else None
    found = ended(tmp_path, given, tried(tmp_path, 16, 1))
    assert (found.certificate.servers, found.certificate.caveat) == (1, Caveat.SERVER_FAILED)
    assert found.codes == [("certification_failed", 1)]
    assert "its log" not in found.notes[0].text


class DiesUnderLoad(NotedBench):
    def measure(self, *given: Any, **named: Any) -> Probe:
        if self.loaded[-1].max_batch_size == 16:
            raise BenchFailed("it died")
        return super().measure(*given, **named)


@pytest.mark.parametrize(
    "given",
    [
        bench(faults=lambda config: "no backend" if config.max_batch_size == 16 else None),
        DiesUnderLoad(service_s=bench().service_s),
    ],
    ids=["as it loads", "under load"],
)
def test_a_candidate_whose_server_fails_gives_way_to_the_next(given: NotedBench, tmp_path: Path) -> None:
    found = ended(tmp_path, given, tried(tmp_path, 16, 1), tried(tmp_path, 12, 2), total_s=60.0)
    assert found.winner.number == 2
    found.assert_confirmed_twice()
    assert found.codes == [("certification_failed", 1)]


@pytest.mark.parametrize("total_s", [MIN_RUN_S, 8.0, 14.0])
def test_too_little_time_is_kept_to_and_said(total_s: float, tmp_path: Path) -> None:
    given = bench()
    found = of_two(tmp_path, given, total_s=total_s)
    assert bool(given.runs) is (total_s > MIN_RUN_S + LOADING_S)
    found.assert_within_budget()
    if found.certified is not None:
        assert found.certificate.confirmed_again is (found.certificate.caveat is None)


def test_a_lower_confidence_is_certified_as_such_if_the_time_is_short(tmp_path: Path) -> None:
    found = ended(tmp_path, bench(), tried(tmp_path, 16, 1), total_s=9.0)
    assert found.codes == [("lower_confidence", None)]
    assert found.certificate.confidence < SLO.confidence
    assert found.certificate.caveat is not None


def test_a_user_who_asks_to_finish_gets_one_short_run(tmp_path: Path) -> None:
    given = bench()
    found = of_two(tmp_path, given, stop=lambda: True)
    (run,) = given.runs
    assert run.most_s <= POLICY.when_stopped_s
    assert (found.certificate.servers, found.certificate.caveat) == (1, Caveat.STOPPED)
    assert found.certificate.confidence == SLO.confidence  # of the only run, as no second one follows
    assert found.baseline.certificate is None


def test_a_user_who_asks_during_a_run_gets_what_it_shows_and_no_other(tmp_path: Path) -> None:
    given = bench()
    found = of_two(tmp_path, given, stop=lambda: len(given.runs) > 0)
    assert len(given.runs) == 1
    assert found.certificate.caveat == Caveat.STOPPED
    (tmp_path / "again").mkdir()
    given = bench()
    again = of_two(tmp_path / "again", given, stop=lambda: given.restarts > 0)
    assert given.restarts == 1
    again.assert_confirmed_twice()


def test_who_asks_to_finish_waits_thirty_seconds_at_most_and_not_for_less_confidence(tmp_path: Path) -> None:
    asked: list[bool] = []

    def during_the_run(config: ServingConfig, size: int) -> float:
        asked.append(True)
        return EXECUTION_S

    given = bench(service_s=during_the_run)
    slo = SLO.model_copy(update={"limits": (LatencyLimit(limit_ms=50.0, quantile=0.9999),), "confidence": 0.999})
    options: dict[str, Any] = {"slo": slo, "total_s": 600.0}
    found = ended(tmp_path, given, tried(tmp_path, DEFAULT, 1), stop=lambda: bool(asked), **options)
    (run,) = given.runs
    assert found.certified is None  # the run had begun, and would have gone on for more than a minute
    assert run.most_s > 2 * POLICY.when_stopped_s
    assert run.load_s <= POLICY.when_stopped_s + 2.0
    assert "lower_confidence" not in found.codes
    short = ended(tmp_path / "short", bench(), tried(tmp_path, 16, 1), stop=lambda: True, total_s=9.0)
    assert "lower_confidence" not in short.codes


@pytest.mark.parametrize("after_restart", [False, True])
def test_a_candidate_over_the_memory_limit_gives_way_to_the_next(after_restart: bool, tmp_path: Path) -> None:
    given, slo = bench(), SLO.model_copy(update={"max_memory_bytes": 2 * GIB})

    def memory(config: ServingConfig) -> int:
        over = config.max_batch_size == 16 and (given.restarts > 0 or not after_restart)
        return 3 * GIB if over else GIB

    given.memory = memory
    trials = (tried(tmp_path, 16, 1), tried(tmp_path, 12, 2))
    found = ended(tmp_path, given, *trials, slo=slo, total_s=60.0)
    assert found.winner.number == 2
    assert found.codes == [("over_memory", 1)]
    alone = ended(tmp_path / "alone", given, trials[0], slo=slo, total_s=200.0)
    assert alone.certified is None


LATENCY = Latency(rate_per_s=500.0)


def at_500(latency_ms: float) -> MeasurementRecord:
    return measurement(rate_per_s=500.0, latency_p99_ms=latency_ms)


def test_no_lower_rate_than_the_one_that_was_asked_for_is_tried(tmp_path: Path) -> None:
    given = bench(service_s=slower(b16=4.0))
    one = tried(tmp_path, 16, 1, measurement=at_500(9.0))
    assert ended(tmp_path, given, one, objective=LATENCY, total_s=60.0).certified is None
    assert {run.rate_per_s for run in given.runs} == {500.0}


def test_the_next_candidate_is_no_reason_to_give_way_if_energy_counts(tmp_path: Path) -> None:
    """A configuration that takes more energy may well have the higher rate."""

    def of_power(power_w: float) -> MeasurementRecord:
        gpu = GpuRecord(
            utilization=None, memory_used_bytes=None, power_w=power_w, energy_per_1000_inferences_j=None
        )
        return measurement(gpu=gpu)

    given = bench(service_s=slower(b12=1.3), power_w=lambda config: 50.0)
    least = tried(tmp_path, 12, 1, measurement=of_power(50.0))
    more = tried(tmp_path, 16, 2, measurement=of_power(90.0))
    found = ended(tmp_path, given, more, least, objective=Energy(), total_s=90.0)
    assert found.winner.number == 1
    assert set(given.batches) == {12}


def test_low_rates_and_several_limits_are_certified(tmp_path: Path) -> None:
    limits = (LatencyLimit(limit_ms=5000.0, quantile=0.9), LatencyLimit(limit_ms=3000.0, quantile=0.5))
    slow = tried(tmp_path, 8, 1, 1.5)
    given = bench(service_s=lambda config, size: 0.5, limit_ms=5000.0)
    found = ended(
        tmp_path, given, slow, slo=SLO.model_copy(update={"limits": limits}), total_s=900.0, profiled=False
    )
    assert 0 < found.certificate.rate_per_s < 1.5
    assert [one.quantile for one in found.certificate.latencies] == [0.9, 0.5]
    found.assert_within_budget()


def test_a_certificate_shorter_than_the_trace_says_so(tmp_path: Path) -> None:
    trace = Workload(arrivals=Arrivals(kind="trace", times_s=tuple(i / 400 for i in range(60_000))))
    found = ended(tmp_path, bench(workload=trace), tried(tmp_path, 16, 1), total_s=40.0, workload=trace)
    shortest = min(run.load_s for run in found.bench.runs) * found.certificate.rate_per_s
    assert trace.caveat(shortest) is not None
    assert "trace" in str(found.certificate.caveat)


def test_an_overload_is_no_change(tmp_path: Path) -> None:
    ended(tmp_path, bench(service_s=slower(b16=4.0)), tried(tmp_path, 16, 1), total_s=10.0)
    first, *_ = read_confirmations(tmp_path)
    assert (first.overloaded, first.change) == (True, None)
