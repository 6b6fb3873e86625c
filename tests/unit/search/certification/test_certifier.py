"""The runs of a confirmation, their events, and the certificate that two confirmations become."""

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recommendations import certificate, certified_latency, contention, trial
from simulated_bench import BudgetOfLoad, SimulatedBench, log_of
from spaces import two_core_space

from loadgen.measurement.cpu_contention import CpuContention
from loadgen.measurement.request_log import RequestLog
from loadgen.spec.limits import LatencyLimit
from loadgen.spec.plan import Arrivals
from loadgen.statistics.capacity_fit import Probe
from model_repo.spec import ServingConfig
from search.certification.certifier import (
    LEAST_CERTIFY_S,
    Certifier,
    Replays,
    join_caveats,
    merge_certificates,
)
from search.records.confirmations import read_confirmations
from search.records.slo import Slo
from search.records.trial import CertificateRecord, CertifiedLatencyRecord
from search.simulator.capacity import rate_at_limit
from search.simulator.server import simulate
from search.simulator.service_times import ServiceCurve
from search.simulator.service_times_file import write_curves
from search.simulator.surrogate import Surrogate
from search.space import knobs_of
from search.study.drift import LONGER_S, SpeedVariation
from search.study.store import open_store
from search.trials import events
from search.trials.bench import BenchFailed
from search.trials.certificate_time import confidence_of_a_run
from search.trials.objective import COST, Objective
from search.trials.trial import Trial
from search.workload import Workload, unit_arrivals


def of_a_run(rate_per_s: float, *further: CertifiedLatencyRecord, **changes: Any) -> CertificateRecord:
    confidence = round(confidence_of_a_run(0.95), 6)
    return certificate(rate_per_s, *further, **{"confidence": confidence, "runs": 1, **changes})


def test_two_runs_together_have_the_confidence_that_was_asked_for() -> None:
    together = merge_certificates(of_a_run(100.0), of_a_run(100.0))
    assert together.confidence == 0.95
    assert together.runs == 2


def test_a_certificate_has_the_worse_latencies_and_all_requests_of_its_runs() -> None:
    first = of_a_run(
        100.0,
        first={"latency_ms": 20.0, "latency_low_ms": 18.0, "latency_high_ms": 40.0, "violations": 3},
        requests=1000,
        seconds=10.0,
    )
    second = of_a_run(
        96.0,
        first={"latency_ms": 22.0, "latency_low_ms": 19.0, "latency_high_ms": 30.0, "violations": 1},
        requests=500,
        seconds=5.0,
    )
    together = merge_certificates(first, second)
    assert together.rate_per_s == 96.0
    assert together.first == certified_latency(
        latency_ms=22.0, latency_low_ms=18.0, latency_high_ms=40.0, violations=4
    )
    assert (together.requests, together.seconds) == (1500, 15.0)


def test_a_certificate_has_the_worse_latencies_of_further_limits() -> None:
    def limit(latency_ms: float, violations: int) -> CertifiedLatencyRecord:
        return CertifiedLatencyRecord(
            quantile=0.5,
            latency_ms=latency_ms,
            latency_low_ms=latency_ms - 1,
            latency_high_ms=latency_ms + 1,
            violations=violations,
        )

    _, together = merge_certificates(of_a_run(1.0, limit(5.0, 2)), of_a_run(1.0, limit(6.0, 1))).latencies
    assert (together.latency_low_ms, together.latency_ms, together.latency_high_ms) == (4.0, 6.0, 7.0)
    assert together.violations == 3


LIMIT_MS = 50.0
MEDIAN = LatencyLimit(quantile=0.5, limit_ms=20.0)
UNSTEADY = SpeedVariation(middle=0.1, spread=0.2)


class Runs(SimulatedBench):
    """Executions of 5 ms, whatever the batch; keeps the rate, the seed and the seconds of each run."""

    def __init__(self, **options: Any) -> None:
        super().__init__(service_s=lambda config, size: 0.005, limit_ms=LIMIT_MS, **options)
        self.runs: list[tuple[float, int, float]] = []
        self.most_s: list[float] = []

    def measure(self, rate_per_s: float, duration_s: float, seed: int, watch: Any = None) -> Probe:
        before_s = self.spent.load_s
        self.most_s.append(duration_s)
        probe = super().measure(rate_per_s, duration_s, seed, watch)
        self.runs.append((rate_per_s, seed, self.spent.load_s - before_s))
        return probe


def codes(seen: Iterable[events.Event]) -> list[tuple[str | None, int | None, bool]]:
    """Return the code of each note, the number of its trial, and whether it is a warning."""
    return [(one.code, one.trial, one.warning) for one in seen if isinstance(one, events.Note)]


def certifier(folder: Path, bench: Runs | None = None, **changes: Any) -> tuple[Certifier, Trial, Runs]:
    """On a bench that has loaded the trial's configuration, which keeps 500/s and not 1,700/s."""
    bench, slo = bench or Runs(), changes.pop("slo", Slo(limits=(LatencyLimit(limit_ms=LIMIT_MS),)))
    space = two_core_space(folder, limit_ms=LIMIT_MS)
    chosen = ServingConfig(engine=space.engines[0], max_batch_size=8, instance_count=1)
    bench.load(chosen)
    known: dict[str, Any] = {
        "bench": bench,
        "slo": slo,
        "objective": COST,
        "budget": BudgetOfLoad(total_s=300.0, spent=bench.spent),
        "seed": 1,
        "directory": folder,
        "workload": Workload(),
        "deadline_s": None,
        "confidence": 0.9,
        "on_event": lambda event: None,
        "replays": Replays(surrogate=Surrogate(space=space, slo=slo, seed=1)),
    }
    return Certifier(**{**known, **changes}), trial(config=chosen, certificate=None), bench


def test_a_confirmation_on_an_unsteady_machine_lasts_longer(tmp_path: Path) -> None:
    steady, one, _ = certifier(tmp_path)
    unsteady, other, _ = certifier(tmp_path, variation=UNSTEADY)
    soon, later = (
        each.confirm_rate(which, 500.0, budget_s=60.0) for each, which in ((steady, one), (unsteady, other))
    )
    assert soon is not None
    assert later is not None
    assert soon.certificate.seconds < LONGER_S <= later.certificate.seconds
    assert soon.certificate.caveat is None
    assert later.certificate.caveat == UNSTEADY.text


def test_all_confirmations_last_longer_after_a_second_one_that_failed(tmp_path: Path) -> None:
    """A first one may fail because its rate was estimated too high; a second one has been met before."""
    given, one, _ = certifier(tmp_path)
    assert given.confirm_rate(one, 5000.0, budget_s=60.0, floor_per_s=4900.0) is None
    assert given.longer_s() == 0.0
    met = given.confirm_rate(one, 500.0, budget_s=60.0)
    assert met is not None
    assert given.longer_s() == 0.0
    assert given.confirm_rate(met, 5000.0, budget_s=60.0, floor_per_s=4900.0) is None
    assert given.longer_s() == LONGER_S
    again = given.confirm_rate(one, 500.0, budget_s=60.0)
    assert again is not None
    assert again.certificate.seconds >= LONGER_S
    assert given.confirm_rate(one, 5000.0, budget_s=60.0, floor_per_s=4900.0) is None
    assert given.longer_s() == LONGER_S, "a first one that fails takes no doubt away"


def test_a_certificate_holds_what_its_run_showed(tmp_path: Path) -> None:
    bench = Runs(taken_cores=lambda load_s: 0.5, memory=lambda config: config.max_batch_size * 2**27)
    given, one, _ = certifier(
        tmp_path, bench, confidence=0.97, slo=Slo(limits=(LatencyLimit(limit_ms=LIMIT_MS), MEDIAN))
    )
    before = given.confirm_rate(one, 400.0, budget_s=60.0)
    met = given.confirm_rate(one, 500.0, budget_s=60.0)
    assert before is not None
    assert met is not None
    (_, _, first_s), (rate_per_s, _, load_s) = bench.runs
    assert met.measurement is not None
    assert met.measurement == bench.last_measurement()
    found = met.certificate
    assert found.rate_per_s == rate_per_s == pytest.approx(500.0)
    assert (found.confidence, found.runs, found.first.violations) == (0.97, 1, 0)
    assert found.seconds == pytest.approx(load_s, abs=0.1)
    assert found.requests == pytest.approx(rate_per_s * (load_s - 1.0), rel=0.1)  # the first second is left out
    first, median = found.latencies
    assert 5.0 < first.latency_low_ms < first.latency_ms < first.latency_high_ms <= LIMIT_MS
    assert 5.0 < median.latency_low_ms < median.latency_ms < median.latency_high_ms <= MEDIAN.limit_ms
    assert found.contention is not None
    assert found.contention.watched_s == pytest.approx(load_s)
    assert found.contention.others_cpu_s == pytest.approx(0.5 * load_s)
    assert met.memory_bytes == 2**30
    again = given.confirm_rate(met, 500.0, budget_s=60.0)
    assert again is not None
    assert again.certificate.runs == 2
    assert again.certificate.confidence == pytest.approx(1 - 0.03**2)
    assert again.certificate.contention is not None
    assert again.certificate.contention.watched_s == pytest.approx(bench.spent.load_s - first_s)
    assert len({seed for _, seed, _ in bench.runs}) == 3, "every confirmation has fresh arrivals"
    assert [(line.again, line.met) for line in read_confirmations(tmp_path)] == [
        (False, True),
        (False, True),
        (True, True),
    ]


def test_more_confidence_takes_more_requests(tmp_path: Path) -> None:
    few, many = (certifier(tmp_path, confidence=confidence) for confidence in (0.8, 0.9999))
    requests = [
        met.certificate.requests
        for given, one, _ in (few, many)
        if (met := given.confirm_rate(one, 500.0, budget_s=60.0))
    ]
    assert len(requests) == 2
    assert requests[0] < requests[1]
    assert few[0].least_s(500.0) < many[0].least_s(500.0)


def test_a_lower_confidence_is_noted_and_in_the_certificate(tmp_path: Path) -> None:
    seen: list[events.Event] = []
    given, one, _ = certifier(tmp_path, on_event=seen.append)
    assert given.lower_text is None
    given.lower_confidence(0.8)
    assert codes(seen) == [("lower_confidence", None, True)]
    found = given.confirm_rate(one, 500.0, budget_s=60.0)
    assert found is not None
    assert found.certificate.confidence == pytest.approx(confidence_of_a_run(0.8), abs=1e-6)
    assert given.lower_text is not None
    assert found.certificate.caveat == given.lower_text


def test_a_rate_that_is_not_met_is_reported_with_the_rate_that_was_served(tmp_path: Path) -> None:
    seen: list[events.Event] = []
    given, one, bench = certifier(tmp_path, on_event=seen.append)
    assert given.confirm_rate(one, 5000.0, budget_s=60.0, floor_per_s=4900.0) is None
    (told,) = (event for event in seen if isinstance(event, events.ConfirmationEnded))
    assert told.trial == one
    assert (told.certificate, told.violated, told.rate_per_s) == (None, True, pytest.approx(5000.0))
    assert given.served_per_s == {one.number: pytest.approx(1600.0, rel=0.02)}  # 8 per 5 ms
    assert "4,900/s" in given.last_reason
    assert len(bench.runs) == 1


def test_no_other_rate_than_the_one_that_was_asked_for_is_tried(tmp_path: Path) -> None:
    given, one, bench = certifier(tmp_path, objective=Objective(name="latency", rate_per_s=1700.0))
    assert given.rate_to_try(one, 0.5) == 1700.0
    assert given.confirm_rate(one, 1700.0, budget_s=60.0) is None
    assert [rate for rate, _, _ in bench.runs] == [pytest.approx(1700.0)]


def test_a_lower_rate_is_tried_on_an_unsteady_machine(tmp_path: Path) -> None:
    steady, one, _ = certifier(tmp_path)
    unsteady, _, _ = certifier(tmp_path, variation=UNSTEADY)
    assert steady.rate_to_try(one, 0.5) == pytest.approx(0.5 * 1050.0)
    assert unsteady.rate_to_try(one, 0.5) == pytest.approx(0.5 * 1050.0 * UNSTEADY.margin)
    assert UNSTEADY.margin < 1.0


class Told(Replays):
    """In a replay of the run, the configuration has a capacity of 1,500/s at its present speed."""

    def rate_at_limit(self, config: ServingConfig, log: RequestLog) -> float:
        assert config.max_batch_size == 8
        assert len(log) > 1000
        return 1500.0


@pytest.mark.parametrize("variation", [SpeedVariation(), SpeedVariation(middle=0.0, spread=0.1)])
def test_after_a_failed_run_no_rate_above_the_capacity_of_its_replay_is_tried(
    variation: SpeedVariation, tmp_path: Path
) -> None:
    given, one, bench = certifier(tmp_path, variation=variation)
    given.replays = Told(surrogate=given.replays.surrogate)
    assert given.confirm_rate(one, 1700.0, budget_s=60.0) is not None
    assert bench.runs[1][0] < variation.margin * 1500.0


def test_a_confirmation_keeps_to_its_seconds_and_to_the_deadline(tmp_path: Path) -> None:
    given, one, bench = certifier(tmp_path, deadline_s=20.0)
    assert given.confirm_rate(one, 1590.0, budget_s=15.0, floor_per_s=1500.0) is None
    assert bench.spent.load_s <= 15.0 + 1.0  # a run ends with its last response
    assert max(bench.most_s) <= 15.0
    assert given.left_s() == pytest.approx(20.0 - bench.spent.load_s - bench.spent.loading_s)
    bench.spent.load_s = 500.0
    assert given.left_s() == 0.0


@pytest.mark.parametrize(("deadline_s", "extended"), [(None, True), (100.0, False)])
def test_time_lost_to_contention_is_added_only_if_little_is_left_and_no_deadline(
    deadline_s: float | None, extended: bool, tmp_path: Path
) -> None:
    given, _, bench = certifier(tmp_path, deadline_s=deadline_s)
    bench.spent.load_s, bench.spent.contention = 80.0, CpuContention(watched_s=80.0, disturbed_s=60.0)
    given.share_of_time(0.5)
    assert given.budget.extended_s == 0.0
    bench.spent.load_s = (deadline_s or 300.0) - 1.5 * LEAST_CERTIFY_S
    assert (given.share_of_time(0.5) > LEAST_CERTIFY_S) is extended
    assert (given.budget.extended_s > 0.0) is extended


@pytest.mark.parametrize(("memory_bytes", "fits"), [(None, True), (2**30, True), (2**30 + 1, False)])
def test_a_trial_over_the_memory_limit_is_refused_and_named(
    memory_bytes: int | None, fits: bool, tmp_path: Path
) -> None:
    seen: list[events.Event] = []
    given, one, _ = certifier(
        tmp_path, slo=Slo(limits=(LatencyLimit(limit_ms=LIMIT_MS),), max_memory_bytes=2**30), on_event=seen.append
    )
    assert given.fits(one.changed(memory_bytes=memory_bytes)) is fits
    assert codes(seen) == ([] if fits else [("over_memory", one.number, True)])
    unlimited, _, _ = certifier(tmp_path)
    assert unlimited.fits(one.changed(memory_bytes=memory_bytes))


def test_caveats_and_contention_are_those_of_both_runs() -> None:
    first, second = (
        of_a_run(1.0, caveat=caveat, contention=contention(seconds, of_s=10.0))
        for caveat, seconds in (("first", 2.0), ("second", 3.0))
    )
    together = merge_certificates(first, second)
    assert together.caveat == "first; second"
    assert merge_certificates(first, first).caveat == "first"
    assert together.contention == contention(2.0, of_s=10.0) + contention(3.0, of_s=10.0)


class Late(Runs):
    """The client of the first run sends late."""

    def measure(self, rate_per_s: float, duration_s: float, seed: int, watch: Any = None) -> Probe:
        probe = super().measure(rate_per_s, duration_s, seed, watch)
        return probe if len(self.runs) > 1 else replace(probe, problems=("the client sent late",))


def test_a_run_that_measured_the_client_is_noted_and_repeated(tmp_path: Path) -> None:
    seen: list[events.Event] = []
    given, one, bench = certifier(tmp_path, Late(), on_event=seen.append)
    met = given.confirm_rate(one.changed(certificate=of_a_run(500.0)), 500.0, budget_s=60.0)
    assert met is not None
    note, certified = seen
    assert codes([note]) == [("run_not_trusted", one.number, True)]
    assert isinstance(certified, events.ConfirmationEnded)
    assert (certified.certificate, certified.rate_per_s) == (met.certificate, pytest.approx(500.0))
    assert [rate for rate, _, _ in bench.runs] == [pytest.approx(500.0)] * 2
    assert given.longer_s() == 0.0
    first, second = read_confirmations(tmp_path)
    assert (first.problems, first.met, second.problems, second.met) == (
        ("the client sent late",),
        False,
        (),
        True,
    )


class Changing(Runs):
    """From the sixth second of the first run on, every 12th response takes 80 ms longer."""

    def _done(self, config: ServingConfig, arrivals: Any, noise: Any) -> Any:
        late = (arrivals > 5.0) & (np.arange(len(arrivals)) % 12 == 0) & (not self.runs)
        return super()._done(config, arrivals, noise) + 0.08 * late


def test_a_run_that_changed_in_its_middle_is_noted_and_kept(tmp_path: Path) -> None:
    seen: list[events.Event] = []
    given, one, _ = certifier(tmp_path, Changing(), on_event=seen.append)
    assert given.confirm_rate(one, 500.0, budget_s=60.0) is not None
    first, last = read_confirmations(tmp_path)
    assert first.change is not None
    assert last.change is None
    (note,) = (event for event in seen if isinstance(event, events.Note))
    assert codes([note]) == [("run_changed", one.number, True)]
    assert first.change in note.text


def test_an_overload_is_no_change(tmp_path: Path) -> None:
    """The longer it lasts, the more requests are late."""
    given, one, _ = certifier(tmp_path)
    assert given.confirm_rate(one, 5000.0, budget_s=60.0, floor_per_s=4900.0) is None
    assert [(run.overloaded, run.change) for run in read_confirmations(tmp_path)] == [(True, None)]


def test_a_failed_confirmation_ends_with_a_note_on_its_last_rate(tmp_path: Path) -> None:
    seen: list[events.Event] = []
    given, one, _ = certifier(tmp_path, on_event=seen.append)
    assert given.confirm_rate(one, 5000.0, budget_s=60.0, floor_per_s=4900.0) is None
    *_, last = seen
    (attempt,) = read_confirmations(tmp_path)
    assert codes([last]) == [("not_met", one.number, False)]
    assert isinstance(last, events.Note)
    assert "5,000/s" in last.text
    assert attempt.reason in last.text
    assert (attempt.trial, attempt.answer, attempt.met) == (one.number, "violated", False)
    seen.clear()
    assert given.confirm_rate(one, 500.0, budget_s=1.0) is None
    assert seen == []  # nothing was tried


def test_a_certificate_has_a_caveat_if_its_runs_were_shorter_than_the_trace(tmp_path: Path) -> None:
    trace = Workload(arrivals=Arrivals(kind="trace", times_s=tuple(i / 400 for i in range(10_000))))
    given, one, _ = certifier(tmp_path, workload=trace, variation=UNSTEADY)
    part = given.confirm_rate(one, 500.0, budget_s=18.0)  # the whole trace takes 20 s
    assert part is not None
    requests = part.certificate.seconds * part.certificate.rate_per_s
    assert requests < 9_500
    assert part.certificate.caveat == f"{trace.caveat(requests)}; {UNSTEADY.text}"
    whole = given.confirm_rate(one, 500.0, budget_s=60.0)
    assert whole is not None
    assert whole.certificate.caveat == UNSTEADY.text


def test_only_caveats_that_are_not_empty_are_joined() -> None:
    assert join_caveats(None, None) is None
    assert join_caveats("one", None, "two") == "one; two"


def test_a_given_rate_has_a_floor_just_below_it(tmp_path: Path) -> None:
    given, one, _ = certifier(tmp_path, objective=Objective(name="latency", rate_per_s=500.0))
    met = given.confirm_rate(one, 500.0, budget_s=60.0)
    assert met is not None
    assert met.certificate.rate_per_s == pytest.approx(500.0)
    assert given.confirm_rate(one, 490.0, budget_s=60.0) is None


def test_the_log_has_every_attempt_and_the_whole_text_of_a_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="tritune.certification")
    given, one, _ = certifier(tmp_path)
    assert given.last_reason == ""
    assert given.confirm_rate(one, 500.0, budget_s=60.0) is not None
    given.lost(one, BenchFailed("The server ended.\nIts log"))
    attempt, lost = (record.getMessage() for record in caplog.records)
    assert attempt.startswith(f"trial {one.number}: Attempt(rate_per_s=500")
    assert lost == f"certification of trial {one.number} failed: The server ended.\nIts log"


def test_a_failure_is_noted_with_its_first_line(tmp_path: Path) -> None:
    seen: list[events.Event] = []
    given, one, _ = certifier(tmp_path, on_event=seen.append)
    given.lost(one, BenchFailed("The server ended.\nIts log"))
    assert codes(seen) == [("certification_failed", one.number, True)]
    (note,) = seen
    assert isinstance(note, events.Note)
    assert "The server ended." in note.text
    assert "Its log" not in note.text


def test_a_replay_has_the_capacity_at_the_speed_of_the_run(tmp_path: Path) -> None:
    store = open_store(two_core_space(tmp_path), tmp_path, storage="sqlite://", seed=3, objective=COST)
    one = ServingConfig(engine=store.space.engines[0], max_batch_size=8, instance_count=1)
    slo = Slo(limits=(LatencyLimit(limit_ms=LIMIT_MS),))
    profiled = Surrogate(space=store.space, slo=slo, seed=1)
    profiled.curves[profiled.kind_of(knobs_of(one))][1] = ServiceCurve(
        busy=1,
        sizes=(1.0, 64.0),
        seconds=(0.0072, 0.0828),
        handover_s=0.0,
        fit_error=0.0,
        overhead_s=0.0,
        noise=(1.0,),
    )
    write_curves(tmp_path, profiled.curves)
    real = profiled.server(one).slowed(1.2)
    rate_per_s = rate_at_limit(real, slo.limits, unit_arrivals(1))
    arrivals_s = unit_arrivals(3, requests=2000) / (0.9 * rate_per_s)
    run = log_of(arrivals_s, arrivals_s + simulate(real, arrivals_s).latency_s)
    replays = Replays.of_run(store, slo=slo, seed=1, workload=Workload())
    assert replays.rate_at_limit(one, run) == pytest.approx(rate_per_s, rel=0.05)
    assert replays.rate_at_limit(one, run.rows(0, 20)) == math.inf, "so few requests tell nothing"
    assert replays.rate_at_limit(replace(one, instance_count=2), run) == math.inf, "it was not profiled"
    unlike = Replays.of_run(store, slo=slo, seed=1, workload=Workload(predictable=False))
    assert unlike.rate_at_limit(one, run) == math.inf, "requests differ in too many ways"
    by_fours = Arrivals(kind="trace", times_s=tuple(float(i // 4) for i in range(2000)))
    even = Replays.of_run(store, slo=slo, seed=1, workload=Workload(arrivals=by_fours))
    assert 1.1 * rate_per_s < even.rate_at_limit(one, run) < math.inf, "fours at even times wait less"


@pytest.mark.parametrize(("share", "extended"), [(1.01, False), (0.99, True)])
def test_time_lost_is_added_if_the_share_is_too_little_for_a_run(
    share: float, extended: bool, tmp_path: Path
) -> None:
    given, _, bench = certifier(tmp_path)
    bench.spent.contention = CpuContention(watched_s=80.0, disturbed_s=60.0)
    bench.spent.load_s = 300.0 - 2.0 * share * LEAST_CERTIFY_S - bench.spent.loading_s
    given.share_of_time(0.5)
    assert (given.budget.extended_s > 0.0) is extended


def test_a_rate_below_one_request_per_second_is_tried(tmp_path: Path) -> None:
    slo = Slo(limits=(LatencyLimit(limit_ms=LIMIT_MS, quantile=0.9),))
    given, one, bench = certifier(tmp_path, slo=slo)
    given.confirm_rate(one, 0.9, budget_s=300.0)
    assert bench.runs[0][0] == pytest.approx(0.9)
