"""The flow of a load test, against a simulated server: what each kind of run amounts to."""

import csv
from dataclasses import replace
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from simulated_generator import SimulatedGenerator

from loadgen.arguments import Arguments, order_from_arguments
from loadgen.compare import read_baseline
from loadgen.live import LiveView
from loadgen.loadtest import find_out, record_of
from loadgen.order import Order, Outputs
from loadgen.plan import LoadPlan
from loadgen.reports.record import LoadTestRecord
from loadgen.reports.write import write_reports

QUICK = Arguments(url="http://127.0.0.1:9", model="m", rate=200.0, limits=(("p99", "50ms"),), duration="20s")


def order(**changes: object) -> Order:
    return order_from_arguments(replace(QUICK, **changes), {})[0]  # type: ignore[arg-type]


def carried_out(
    given: Order,
    generator: SimulatedGenerator,
    *,
    stop_after: int | None = None,
    baseline: LoadTestRecord | None = None,
) -> LoadTestRecord:
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return stop_after is not None and asked > stop_after

    with LiveView(Console(file=StringIO()), timeout_s=given.plan.timeout_s, limit_ms=None) as view:
        finding = find_out(given, generator, view, stop)
    return record_of(given, finding, notes=(), started_at=datetime.now(UTC), baseline=baseline)


def test_a_limit_that_holds_is_kept() -> None:
    record = carried_out(order(), SimulatedGenerator(service_ms=2.0))
    assert (record.outcome, record.exit_code) == ("kept", 0)
    assert record.reasons[0].startswith("p99 <= 50 ms")
    assert record.measurement is not None
    assert record.measurement.requests == pytest.approx(4000, rel=0.1)
    assert record.timeline is not None
    assert record.curve is not None


@pytest.mark.parametrize(("delay_ms", "outcome"), [(2.0, "kept"), (60.0, "broken")])
def test_a_load_too_long_to_keep_every_request_is_judged_from_counts(
    tmp_path: Path, delay_ms: float, outcome: str
) -> None:
    generator = SimulatedGenerator(delay_ms=delay_ms, failing=0.01 if outcome == "broken" else 0.0)
    given = replace(order(duration="60s", max_errors="1%"), most_kept=1000)
    with LiveView(Console(file=StringIO()), timeout_s=10.0, limit_ms=None) as view:
        finding = find_out(given, generator, view, lambda: False)
    record = record_of(given, finding, notes=(), started_at=datetime.now(UTC))
    assert record.outcome == outcome
    assert record.measurement is not None
    assert record.measurement.percentiles_from == "histogram"
    assert record.measurement.latency_p50_ms == pytest.approx(delay_ms, rel=1.1e-3)
    assert record.measurement.latency_p99_low_ms is not None
    assert record.curve is not None
    assert record.timeline is not None
    assert sum(record.timeline.due_per_s) * record.timeline.bin_s == pytest.approx(record.measurement.requests)
    assert finding.run is not None
    outputs = Outputs(csv_prefix=tmp_path / "long", html=tmp_path / "long.html")
    assert write_reports(record, finding.run.log, outputs, tally=finding.run.tally) == []
    history = list(csv.DictReader((tmp_path / "long_stats_history.csv").read_text().splitlines()))
    assert int(history[-1]["Total Request Count"]) == record.measurement.requests
    stats = list(csv.DictReader((tmp_path / "long_stats.csv").read_text().splitlines()))
    assert float(stats[0]["99%"]) == pytest.approx(record.measurement.latency_p99_ms, rel=1e-3)
    failures = list(csv.DictReader((tmp_path / "long_failures.csv").read_text().splitlines()))
    assert sum(int(row["Occurrences"]) for row in failures) == record.measurement.failures
    assert "HdrHistogram" in (tmp_path / "long.html").read_text()


def test_fail_fast_stops_a_load_that_is_counted() -> None:
    given = replace(order(duration="600s", fail_fast=True), most_kept=1000)
    record = carried_out(given, SimulatedGenerator(delay_ms=60.0))
    assert record.outcome == "broken"
    assert record.measurement is not None
    assert record.measurement.duration_s < 100


def test_a_limit_that_does_not_hold_is_broken() -> None:
    record = carried_out(order(), SimulatedGenerator(delay_ms=60.0))
    assert (record.outcome, record.exit_code) == ("broken", 99)
    assert record.checks[0].violations == record.checks[0].requests


def test_a_short_run_says_how_long_it_would_have_to_be() -> None:
    record = carried_out(order(duration="2s"), SimulatedGenerator(service_ms=2.0))
    assert (record.outcome, record.exit_code) == ("undecided", 96)
    needed_s = record.checks[0].needed_s
    assert needed_s is not None
    assert f"--duration {-int(-needed_s // 1)}s" in record.reasons[0]
    longer = carried_out(order(duration=f"{1.2 * needed_s}s"), SimulatedGenerator(service_ms=2.0))
    assert longer.outcome == "kept"


def test_failures_are_judged_by_their_own_limit() -> None:
    given = order(limits=(("p50", "50ms"),), max_errors="1%")
    assert carried_out(given, SimulatedGenerator()).outcome == "kept"
    failing = carried_out(given, SimulatedGenerator(failing=0.05))
    assert failing.outcome == "broken"
    assert [check.answer for check in failing.checks] == ["kept", "broken"]
    assert failing.measurement is not None
    assert list(failing.measurement.errors) == ["http 503"]


@pytest.mark.parametrize(("failing", "outcome"), [(0.0, "kept"), (0.001, "broken")])
def test_no_failure_at_all_is_about_this_run(failing: float, outcome: str) -> None:
    given = order(limits=(), max_errors="0%")
    assert carried_out(given, SimulatedGenerator(failing=failing)).outcome == outcome


def test_a_client_that_falls_behind_decides_nothing() -> None:
    record = carried_out(order(), SimulatedGenerator(delay_ms=55.0, send_lag_ms=3.0))
    assert (record.outcome, record.exit_code) == ("untrustworthy", 98)
    assert "send lag" in " ".join(record.reasons)


def test_a_server_far_over_the_limit_is_not_excused_by_it() -> None:
    record = carried_out(order(), SimulatedGenerator(delay_ms=500.0, send_lag_ms=30.0))
    assert (record.outcome, record.exit_code) == ("broken", 99)


def test_without_a_limit_there_is_nothing_to_break_unless_everything_failed() -> None:
    assert carried_out(order(limits=()), SimulatedGenerator(delay_ms=500.0)).outcome == "measured"
    assert carried_out(order(limits=()), SimulatedGenerator(failing=1.0)).outcome == "broken"


def test_fail_fast_stops_once_the_limit_is_certainly_broken() -> None:
    slow = SimulatedGenerator(delay_ms=60.0)
    record = carried_out(order(fail_fast=True), slow)
    assert record.outcome == "broken"
    assert record.measurement is not None
    assert record.measurement.duration_s < 10
    patient = carried_out(order(), slow)
    assert patient.measurement is not None
    assert patient.measurement.duration_s == pytest.approx(20, abs=0.1)


def test_a_verdict_that_was_reached_stands() -> None:
    class Recovering(SimulatedGenerator):
        """Slow while it is watched, and quick in what it has to show in the end."""

        def run(self, target, plan, *, payload=None, limit_ms=None, watch=None, tally=None):  # type: ignore[no-untyped-def]
            if watch is not None:
                SimulatedGenerator(delay_ms=60.0).run(target, plan, watch=watch)
            return super().run(target, plan)

    assert carried_out(order(fail_fast=True), Recovering()).outcome == "broken"


def test_fail_fast_does_not_stop_what_keeps_the_limit() -> None:
    record = carried_out(order(fail_fast=True), SimulatedGenerator(service_ms=2.0))
    assert record.outcome == "kept"
    assert record.measurement is not None
    assert record.measurement.duration_s > 19


@pytest.mark.parametrize("stop_after", [0, 5, 20])
def test_an_interrupted_run_keeps_what_it_has(stop_after: int) -> None:
    record = carried_out(order(), SimulatedGenerator(service_ms=2.0), stop_after=stop_after)
    assert (record.outcome, record.exit_code) == ("interrupted", 130)
    if stop_after > 5:
        assert record.measurement is not None
        assert 0 < record.measurement.duration_s < 20


def test_the_warmup_is_another_load_and_is_not_in_the_figures() -> None:
    generator = SimulatedGenerator()
    record = carried_out(order(warmup="3s"), generator)
    warmup, measured = generator.plans
    assert (warmup.duration_s, measured.duration_s) == (3.0, 20.0)
    assert warmup.seed != measured.seed
    assert record.load.warmup_s == 3.0


def test_a_ramp_is_warmed_up_at_the_rate_where_it_begins() -> None:
    generator = SimulatedGenerator()
    carried_out(order(arrivals="ramp:from=0.5,to=2"), generator)
    warmup = generator.plans[0]
    assert isinstance(warmup, LoadPlan)
    assert (warmup.rate_per_s, warmup.arrivals.kind) == (100.0, "poisson")


def test_no_warmup_sends_none() -> None:
    generator = SimulatedGenerator()
    carried_out(order(warmup="0s"), generator)
    assert len(generator.plans) == 1


def test_a_closed_loop_is_measured_and_labelled() -> None:
    record = carried_out(order(rate=None, concurrency=4), SimulatedGenerator(delay_ms=10.0))
    assert record.load.kind == "closed"
    assert "closed loop" in record.reasons[1]
    assert record.measurement is not None
    assert record.measurement.planned_rate_per_s is None


def test_worse_than_the_baseline_is_an_outcome_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    given = order(compare=None, arrivals="gamma:cv=1.5")
    before = carried_out(given, SimulatedGenerator(service_ms=2.0))
    path.write_text(before.model_dump_json())
    again = replace(given, compare=path, plan=replace(given.plan, seed=7))
    same = carried_out(again, SimulatedGenerator(service_ms=2.0), baseline=read_baseline(path))
    assert (same.outcome, same.exit_code) == ("kept", 0)
    assert same.comparison[0].answer == "no difference seen"
    slower = carried_out(again, SimulatedGenerator(service_ms=3.0), baseline=read_baseline(path))
    assert (slower.outcome, slower.exit_code) == ("worse", 97)
    assert slower.baseline == "baseline.json"


def test_a_comparison_that_cannot_be_made_is_not_a_pass(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    before = carried_out(order(), SimulatedGenerator(service_ms=2.0))
    path.write_text(before.model_dump_json())
    short = order(compare=path, duration="2s", limits=())
    record = carried_out(short, SimulatedGenerator(service_ms=2.0), baseline=read_baseline(path))
    assert (record.outcome, record.exit_code) == ("undecided", 96)


def test_secrets_that_the_server_echoes_do_not_reach_the_record() -> None:
    arguments = replace(QUICK, header_env=("Authorization=TOKEN",))
    given = order_from_arguments(arguments, {"TOKEN": "Bearer s3cret"})[0]
    record = carried_out(given, SimulatedGenerator(failing=0.5))
    assert record.target.header_names == ("Authorization",)
    assert record.measurement is not None
    assert "you sent" in (record.measurement.error_example or "")
    assert "s3cret" not in record.model_dump_json()


@pytest.mark.parametrize(
    ("arrivals", "mean"),
    [
        ("poisson", 200),
        ("ramp:from=0.5,to=2", 250),
        ("steps:1,2,3", 400),
        ("spike:level=3,start=0.4,end=0.6", 280),
    ],
)
def test_the_planned_rate_is_the_one_that_the_levels_average_to(arrivals: str, mean: float) -> None:
    record = carried_out(order(arrivals=arrivals), SimulatedGenerator())
    assert record.measurement is not None
    assert record.measurement.planned_rate_per_s == pytest.approx(mean)
    assert record.measurement.achieved_rate_per_s == pytest.approx(mean, rel=0.05)
