"""The flow of a load test, against a simulated server: what each kind of run amounts to."""

import csv
import re
from dataclasses import replace
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from simulated_generator import SimulatedGenerator
from virtual_load_test import carried_out, order_of

from loadgen.command.arguments import order_from_options
from loadgen.command.live import LiveView
from loadgen.command.measure import record_of, run_load_test
from loadgen.errors import PlanError
from loadgen.measurement.request_log import RequestLog
from loadgen.options.declare import made_of
from loadgen.options.load_test import LoadTestOptions
from loadgen.reports.write import write_reports
from loadgen.sending import request_table
from loadgen.sending.plan_run import LoadRun
from loadgen.spec.load_test import LoadTest
from loadgen.spec.plan import ClosedLoopPlan, LoadPlan
from loadgen.spec.target import Target

QUICK = {"url": "http://127.0.0.1:9", "model": "m", "rate": 200.0, "p99": "50ms", "duration": "20s"}


def order(**changes: object) -> LoadTest:
    return order_of(**{**QUICK, **changes})


def test_a_limit_that_holds_is_met() -> None:
    record = carried_out(order(), SimulatedGenerator(service_ms=2.0))
    assert (record.outcome, record.exit_code) == ("met", 0)
    assert record.reasons[0].startswith("p99 <= 50 ms")
    assert record.measurement.requests == pytest.approx(4000, rel=0.1)
    assert record.timeline is not None
    assert record.curve is not None


@pytest.mark.parametrize(
    ("cold_runs", "changes", "runs", "outcome"),
    [
        (1, {}, 3, "met"),  # the warm-up, the load, and the load again
        (2, {}, 3, "violated"),
        (1, {"warmup": "0s"}, 1, "violated"),
        (1, {"p99": "500ms", "duration": "200s"}, 2, "met"),
    ],
)
def test_a_load_that_met_first_executions_and_missed_its_limit_is_sent_again(
    cold_runs: int, changes: dict[str, object], runs: int, outcome: str
) -> None:
    generator = SimulatedGenerator(service_ms=2.0, cold_runs=cold_runs)
    given = order(**changes)
    record = carried_out(given, generator)
    assert (len(generator.plans), record.outcome) == (runs, outcome)
    assert record.load.warmup_s == given.effective_warmup_s
    assert any("new shapes" in note for note in record.notes) == (runs == 3)
    assert any("new shapes" in reason for reason in record.reasons) == (outcome == "violated")


def test_a_load_that_cannot_be_sent_again_counts_as_it_was() -> None:
    generator = SimulatedGenerator(service_ms=2.0, cold_runs=1, unanswered=range(3, 4))
    record = carried_out(order(), generator)
    assert (len(generator.plans), record.outcome) == (3, "violated")
    assert any("new shapes" in reason for reason in record.reasons)


@pytest.mark.parametrize(("delay_ms", "outcome"), [(2.0, "met"), (60.0, "violated")])
def test_the_files_say_what_the_record_says(tmp_path: Path, delay_ms: float, outcome: str) -> None:
    generator = SimulatedGenerator(delay_ms=delay_ms, failing=0.01 if outcome == "violated" else 0.0)
    outputs = {"--csv": tmp_path / "long", "--html": tmp_path / "long.html"}
    given = replace(order(duration="60s", max_errors="1%"), outputs=outputs)
    with LiveView(Console(file=StringIO()), timeout_s=10.0, limit_ms=None) as view:
        finding = run_load_test(given, generator, view, lambda: False)
    record = record_of(given, finding, notes=(), started_at=datetime.now(UTC))
    assert record.outcome == outcome
    assert record.curve is not None
    assert sum(record.timeline.due_per_s) * record.timeline.bin_s == pytest.approx(record.measurement.requests)
    assert write_reports(record, finding.run.log, outputs) == []
    history = list(csv.DictReader((tmp_path / "long_stats_history.csv").read_text().splitlines()))
    assert int(history[-1]["Total Request Count"]) == record.measurement.requests
    stats = list(csv.DictReader((tmp_path / "long_stats.csv").read_text().splitlines()))
    assert float(stats[0]["99%"]) == pytest.approx(record.measurement.latency_p99_ms, rel=1e-3)
    failures = list(csv.DictReader((tmp_path / "long_failures.csv").read_text().splitlines()))
    assert sum(int(row["Occurrences"]) for row in failures) == record.measurement.failures
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"long_stats.csv", "long_stats_history.csv", "long_failures.csv", "long.html"}


@pytest.mark.parametrize(
    ("asked", "observed"),
    [({"duration": "2s"}, "met"), ({"rate": 20.0, "p99": "2s", "duration": "5s"}, None)],
    ids=["too short", "before its load has settled"],
)
def test_a_short_run_says_how_long_it_would_have_to_be(asked: dict[str, Any], observed: str | None) -> None:
    record = carried_out(order(**asked), SimulatedGenerator(service_ms=2.0))
    assert (record.outcome, record.exit_code) == ("inconclusive", 96)
    assert record.checks[0].observed_answer == observed
    assert "0 of 0" not in record.reasons[0]
    (advised,) = re.findall(r"--duration (\d+[sm])", record.reasons[0])
    assert (
        carried_out(order(**{**asked, "duration": advised}), SimulatedGenerator(service_ms=2.0)).outcome == "met"
    )


@pytest.mark.parametrize(
    ("changes", "generator", "observed", "outcome"),
    [
        ({"duration": "2s"}, SimulatedGenerator(service_ms=2.0), {"met"}, "met"),
        ({"duration": "1.2s"}, SimulatedGenerator(delay_ms=60.0), {"violated"}, "inconclusive"),
        ({"duration": "1.2s"}, SimulatedGenerator(failing=1.0), {"violated"}, "inconclusive"),
        ({"duration": "2s", "p50": "1ms"}, SimulatedGenerator(service_ms=2.0), {"met", "violated"}, "violated"),
        ({}, SimulatedGenerator(delay_ms=60.0), {"violated"}, "violated"),
        ({"duration": "0.5s"}, SimulatedGenerator(), {None}, "inconclusive"),
    ],
)
def test_an_accepted_observation_counts_if_the_run_met_every_limit(
    changes: dict[str, object], generator: SimulatedGenerator, observed: set[str | None], outcome: str
) -> None:
    record = carried_out(order(accept_observed=True, **changes), generator)
    without = carried_out(order(**changes), generator)
    assert record.checks == without.checks
    assert {check.observed_answer for check in record.checks} == observed
    assert (record.accept_observed, record.outcome) == (True, outcome)
    assert without.outcome == ("inconclusive" if outcome == "met" else outcome)


def test_failures_are_judged_by_their_own_limit() -> None:
    given = order(p99=None, p50="50ms", max_errors="1%")
    assert carried_out(given, SimulatedGenerator()).outcome == "met"
    failing = carried_out(given, SimulatedGenerator(failing=0.05))
    assert failing.outcome == "violated"
    assert [check.answer for check in failing.checks] == ["met", "violated"]
    assert list(failing.measurement.errors) == ["http 503"]


@pytest.mark.parametrize(("failing", "outcome"), [(0.0, "met"), (0.001, "violated")])
def test_no_failure_at_all_is_about_this_run(failing: float, outcome: str) -> None:
    given = order(p99=None, max_errors="0%")
    assert carried_out(given, SimulatedGenerator(failing=failing)).outcome == outcome


def test_a_client_that_falls_behind_decides_nothing() -> None:
    record = carried_out(order(), SimulatedGenerator(delay_ms=55.0, send_lag_ms=3.0))
    assert (record.outcome, record.exit_code) == ("untrustworthy", 98)
    assert "send lag" in " ".join(record.reasons)


def test_a_server_far_over_the_limit_is_not_excused_by_it() -> None:
    record = carried_out(order(), SimulatedGenerator(delay_ms=500.0, send_lag_ms=30.0))
    assert (record.outcome, record.exit_code) == ("violated", 99)


def test_without_a_limit_there_is_nothing_to_break_unless_everything_failed() -> None:
    assert carried_out(order(p99=None), SimulatedGenerator(delay_ms=500.0)).outcome == "measured"
    assert carried_out(order(p99=None), SimulatedGenerator(failing=1.0)).outcome == "violated"


def test_fail_fast_stops_once_the_limit_is_certainly_violated() -> None:
    slow = SimulatedGenerator(delay_ms=60.0)
    record = carried_out(order(fail_fast=True), slow)
    assert record.outcome == "violated"
    assert record.measurement.duration_s < 10
    patient = carried_out(order(), slow)
    assert patient.measurement.duration_s == pytest.approx(20, abs=0.1)


def test_a_verdict_that_was_reached_stands() -> None:
    class Recovering(SimulatedGenerator):
        """Slow while it is watched, and quick in what it has to show in the end."""

        def run(self, target: Target, plan: LoadPlan | ClosedLoopPlan, **options: Any) -> LoadRun:
            if options.get("watch") is not None:
                SimulatedGenerator(delay_ms=60.0).run(target, plan, watch=options["watch"])
            return super().run(target, plan)

    assert carried_out(order(fail_fast=True), Recovering()).outcome == "violated"


@pytest.mark.parametrize("stop_after", [0, 5, 20])
def test_an_interrupted_run_keeps_what_it_has(stop_after: int) -> None:
    record = carried_out(order(), SimulatedGenerator(service_ms=2.0), stop_after=stop_after)
    assert (record.outcome, record.exit_code) == ("interrupted", 130)
    if stop_after > 5:
        assert 0 < record.measurement.duration_s < 20


def test_the_warmup_is_another_load_and_is_not_in_the_figures() -> None:
    generator = SimulatedGenerator()
    record = carried_out(order(warmup="3s"), generator)
    warmup, measured = generator.plans
    assert (warmup.duration_s, measured.duration_s) == (3.0, 20.0)
    assert warmup.seed != measured.seed
    assert record.load.warmup_s == 3.0


def test_a_load_that_memory_has_no_room_for_is_refused_before_its_warm_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_table, "memory_bytes", lambda kind: 1000)
    generator = SimulatedGenerator()
    with pytest.raises(PlanError, match="of memory"):
        carried_out(order(), generator)
    assert generator.plans == []


def test_a_ramp_is_warmed_up_at_the_rate_where_it_begins() -> None:
    generator = SimulatedGenerator()
    carried_out(order(arrivals="ramp:from=0.5,to=2"), generator)
    warmup = generator.plans[0]
    assert isinstance(warmup, LoadPlan)
    assert (warmup.rate_per_s, warmup.arrivals.kind) == (100.0, "poisson")


def test_a_closed_loop_is_measured_and_labelled() -> None:
    record = carried_out(order(rate=None, concurrency=4), SimulatedGenerator(delay_ms=10.0))
    assert record.load.kind == "closed"
    assert "closed loop" in record.reasons[1]
    assert record.measurement.planned_rate_per_s is None


def test_worse_than_the_baseline_is_an_outcome_of_its_own() -> None:
    given = order(compare=None, arrivals="gamma:cv=1.5")
    before = carried_out(given, SimulatedGenerator(service_ms=2.0))
    again = replace(given, compare=Path("baseline.json"), plan=replace(given.plan, seed=7))
    same = carried_out(again, SimulatedGenerator(service_ms=2.0), baseline=before)
    assert (same.outcome, same.exit_code) == ("met", 0)
    assert same.comparison[0].answer == "no difference seen"
    slower = carried_out(again, SimulatedGenerator(service_ms=3.0), baseline=before)
    assert (slower.outcome, slower.exit_code) == ("worse", 97)
    assert slower.baseline == "baseline.json"


def test_a_comparison_that_cannot_be_made_is_not_a_pass() -> None:
    before = carried_out(order(), SimulatedGenerator(service_ms=2.0))
    for limit in ({"p99": None}, {"accept_observed": True}):
        short = replace(order(duration="2s", **limit), compare=Path("baseline.json"))
        record = carried_out(short, SimulatedGenerator(service_ms=2.0), baseline=before)
        assert (record.outcome, record.exit_code) == ("inconclusive", 96)


def test_secrets_that_the_server_echoes_do_not_reach_the_record() -> None:
    arguments = made_of(LoadTestOptions, {**QUICK, "header_env": ("Authorization=TOKEN",)}, str)
    given = order_from_options(arguments, {"TOKEN": "Bearer s3cret"})[0]
    record = carried_out(given, SimulatedGenerator(failing=0.5))
    assert record.target.header_names == ("Authorization",)
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
    assert record.measurement.planned_rate_per_s == pytest.approx(mean)
    assert record.measurement.achieved_rate_per_s == pytest.approx(mean, rel=0.05)


class ChangingGenerator(SimulatedGenerator):
    """Every `late_every`th response of the second half takes 80 ms longer."""

    late_every = 12

    def _log(self, plan: LoadPlan | ClosedLoopPlan) -> RequestLog:
        log = super()._log(plan)
        late = np.zeros(len(log), np.int64)
        late[len(log) // 2 :: self.late_every] = 80_000_000
        return replace(log, done_ns=log.done_ns + late)


def test_a_run_that_changes_in_the_middle_says_so() -> None:
    record = carried_out(order(rate=1000.0, duration="60s"), ChangingGenerator(service_ms=0.1))
    found = re.search(r"([\d,]+) of the ([\d,]+) requests over .* the second half of the run", record.reasons[0])
    in_it, late = (int(number.replace(",", "")) for number in found.groups())
    assert late == record.checks[0].violations
    assert 0.97 * late < in_it < late  # the warm-up does not count, so that the second half begins later
    assert "--duration" not in " ".join(record.reasons)
