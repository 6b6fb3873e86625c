"""The sentences of certification and of reports, word by word. UPDATE_GOLDENS=1 rewrites them, and fails."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from certifications import SLO, Ended, bench, ended, tried
from recommendations import (
    accuracy,
    certificate,
    certified_latency,
    config,
    contention,
    engine,
    measurement,
    output_accuracy,
    profile,
    recommendation,
    run_dir,
    timings,
    trial,
)

from loadgen.console import SafeConsole
from loadgen.spec.limits import LatencyLimit
from optimizer.command.fleet import plan_fleet
from optimizer.profiling.text import time_summary
from optimizer.reports.evidence import read_evidence
from optimizer.reports.report import report_of
from optimizer.reports.terminal import answer_view, fleet_view, recommendation_view
from optimizer.reports.trial_tables import reason_of
from search.answer.recommend import frontier_of
from search.certification.planner import Caveat
from search.records.certificate import SlowPhasesRecord
from search.records.recommendation import (
    FrontEndsRecord,
    RecommendationRecord,
    SecondsRecord,
    StageRecord,
    StepRecord,
    TimeUseRecord,
)
from search.records.slo import ObjectiveRecord, Slo, WorkloadRecord
from search.records.trial import LoadRunRecord
from search.trials.context import least_certificate_s

GOLDEN = Path(__file__).with_name("texts.json")
GIB = 2**30
GRPC_BETTER = FrontEndsRecord(http=(5700.0, 5650.0, 5600.0), grpc=(9800.0, 9872.0, 9900.0))


def certifications(folder: Path) -> dict[str, Ended]:
    """Return a certification for each note that does not depend on the rates which certification chooses."""
    short_s = 1.7 * least_certificate_s(20.0, SLO, 0.8)
    one = tried(folder, 8, 1)
    return {
        "low rate": ended(folder, bench(), tried(folder, 8, 1, 20.0), total_s=short_s),
        "late": ended(folder, bench(late_runs=(0,)), one),
        "memory": ended(
            folder,
            bench(memory=lambda config: 3 * GIB),
            one,
            slo=SLO.model_copy(update={"max_memory_bytes": GIB // 2}),
            total_s=10.0,
        ),
        "failure": ended(folder, bench(faults=lambda config: "it died\nits log"), one, total_s=10.0),
    }


def reports(folder: Path) -> dict[str, Any]:
    """Return the sentences at the top of the report of each kind of recommendation, without those of the first."""
    busy, winner = contention(34.0, of_s=120.0), trial(0)
    disturbed = trial(0, certificate=certificate(500.0, contention=busy), rate_at_limit_per_s=540.0)
    cost = recommendation().cost
    energies = {"energy_kwh_per_million_inferences": 0.02, "baseline_energy_kwh_per_million_inferences": 0.03}
    latency = {"objective": ObjectiveRecord(name="latency", rate_per_s=900.0), "gain": None}
    cases = {
        "cheaper": recommendation(),
        "default not certified": recommendation(
            baseline=trial(0, certificate=None, rate_at_limit_per_s=432.0), gain=None
        ),
        "default is the best": recommendation(winner=winner, baseline=winner, gain=1.0),
        "default far below its capacity": recommendation(
            baseline=trial(0, certificate=certificate(100.0), rate_at_limit_per_s=700.0), gain=10.0
        ),
        "your configuration far below its capacity": recommendation(
            start=trial(0, certificate=certificate(100.0), rate_at_limit_per_s=700.0)
        ),
        "energy": recommendation(objective=ObjectiveRecord(name="energy"), cost=cost.model_copy(update=energies)),
        "latency": recommendation(**latency),
        "latency, default not certified": recommendation(**latency, baseline=trial(0, certificate=None)),
        "caveat": recommendation(winner=trial(certificate=certificate(caveat="the run was stopped"))),
        "contention of winner": recommendation(winner=trial(certificate=certificate(contention=busy))),
        "contention of default": recommendation(baseline=disturbed),
        "contention of run": recommendation(contention=busy),
        "over gRPC": recommendation(workload=WorkloadRecord(protocol="grpc"), let_through=GRPC_BETTER),
        "over HTTP": recommendation(
            let_through=FrontEndsRecord(http=(75_741.0, 76_000.0), grpc=(55_425.0, 56_000.0))
        ),
        "HTTP may lose answers": recommendation(
            workload=WorkloadRecord(protocol="grpc"),
            let_through=FrontEndsRecord(
                http=(56_000.0, 57_000.0), grpc=(64_000.0, 66_000.0), http_loses_from_per_s=27_700.0
            ),
        ),
        "bytes bound the rate": recommendation(
            workload=WorkloadRecord(protocol="grpc"),
            standalone_per_s=12_166.0,
            let_through=GRPC_BETTER.changed(with_input_types={"x:uint8": 24_600.0, "x:fp16": 15_100.0}),
        ),
        "neither protocol is better": recommendation(
            let_through=FrontEndsRecord(http=(700.0, 750.0), grpc=(710.0, 730.0))
        ),
    }
    tops = {name: top_of(folder / name, found) for name, found in cases.items()}
    usual = tops["cheaper"]
    return {
        name: top if top is usual else [line for line in top if line not in usual] for name, top in tops.items()
    }


def uses_of_time() -> dict[str, str]:
    """Return the paragraph on the use of time for each thing that takes most of it."""

    def winner(changes: Any = None, **measured: Any) -> Any:
        knobs: dict[str, Any] = {"intra_op_threads": 1, "instance_count": 1, **(changes or {})}
        return trial(1, config=config(**knobs), measurement=measurement(**measured))

    default = trial(0, measurement=measurement(rate_per_s=95.0, server=timings(queue_ms=9.0)))
    graphs, known_in_part = {"cuda_graph_batch_sizes": (1, 2)}, {"unknown": 0.6, "bytes": 0.3, "arithmetic": 0.1}
    return {
        "waiting": time_summary(winner(server=timings(queue_ms=30.0)), None),
        "queue delay": time_summary(winner({"max_queue_delay_us": 30_000}, server=timings(queue_ms=30.0)), None),
        "network": time_summary(winner(network_and_client_ms=30.0), None),
        "input": time_summary(winner(server=timings(compute_input_ms=30.0)), None),
        "response": time_summary(winner(server=timings(response_ms=30.0)), None),
        "beside the default": time_summary(winner(), None, default),
        "bound by arithmetic": time_summary(winner(), profile()),
        "bound by bytes": time_summary(winner(), profile(bound="bytes")),
        "bound by neither": time_summary(winner(), profile(bound="overhead")),
        "bound known in part": time_summary(winner(), profile(bound_shares=known_in_part)),
        "bound unknown": time_summary(winner(), profile(bound="unknown")),
        "engine hardly counts": time_summary(winner(), profile(execution_ms=0.0118)),
        "graphs": time_summary(winner(graphs), profile(other_graph_ms=15.0)),
        "no graphs": time_summary(winner(), profile(other_graph_ms=3.75)),
    }


def reasons() -> dict[str, str]:
    """Return the reason of each kind of trial, as reports give it."""
    slow = trial(
        state="infeasible",
        reason="requests take over 5 ms",
        lone_latency_ms=7.25,
        contention=contention(5.0, of_s=9.0, cores=1.0),
    )
    run = LoadRunRecord(rate_per_s=790.0, latency_ms=35.0, met=False, trusted=True, change="the run changed: late")
    return {
        "complete": reason_of(trial()),
        "infeasible": reason_of(slow),
        "failed": reason_of(trial(state="failed", reason="m does not load")),
        "changed": reason_of(trial(load_runs=(run, run.changed(change=None)))),
    }


def ends_of_runs() -> dict[str, Any]:
    """Return what `-v` and `explain` show; of all runs but the first, the lines that differ from it."""
    spent = SecondsRecord(
        total=100.0,
        load=60.0,
        loading_models=10.0,
        other=30.0,
        preparation=(StepRecord(step="export", seconds=2.5, cached=True), StepRecord(step="reading", seconds=9.0)),
        stages=(
            StageRecord(stage="prepare", seconds=20.0, load=0.0, loading_models=0.0),
            StageRecord(stage="search", seconds=80.0, load=60.0, loading_models=10.0),
        ),
    )
    limits = (LatencyLimit(limit_ms=50.0), LatencyLimit(quantile=0.5, limit_ms=10.0))
    median = certified_latency(quantile=0.5, latency_ms=7.5, latency_low_ms=7.0, latency_high_ms=8.0, violations=4)
    slow = SlowPhasesRecord(share=0.124, slowdown=1.63, seen_s=118.2, usual_per_s=1200.0)
    int8 = {
        "winner": trial(config=config(engine=replace(engine(), precision="int8"))),
        "accuracy": (accuracy(output_accuracy(sqnr_db=39.5), precision="int8", inputs=64, input_source="given"),),
    }
    cases: dict[str, dict[str, Any]] = {
        "usual": {},
        "once": {"winner": trial(certificate=certificate(runs=1))},
        "slow phases": {"winner": trial(certificate=certificate().changed(unseen_every_s=27.9))},
        "much slower at times": {"winner": trial(certificate=certificate().changed(slow_phases=slow))},
        "slow phases ignored": {
            "winner": trial(certificate=certificate().changed(slow_phases=slow.changed(ignored=True)))
        },
        "default not certified": {"baseline": trial(0, certificate=None, rate_at_limit_per_s=432.0), "gain": None},
        "default is the best": {"winner": trial(0), "baseline": trial(0), "gain": 1.0},
        "no timings": {"winner": trial(measurement=None), "baseline": None, "gain": None},
        "precision": int8,
        "limits": {
            "slo": Slo(limits=limits, max_memory_bytes=8 * GIB),
            "winner": trial(certificate=certificate(1000.0, median), memory_bytes=GIB),
        },
        "frontier": {"frontier": frontier_of([trial()])},
        "seconds": {"seconds": spent},
        "layers": {"time_use": TimeUseRecord(summary="Smaller weights help.", winner=profile("[conv1]", "bytes"))},
        "no layers": {"time_use": TimeUseRecord(summary="Waiting.", winner=None)},
        "near the engine": {"standalone_per_s": 1500.0},
        "far from the engine": {"standalone_per_s": 20_000.0},
    }
    shown = {name: end_of(recommendation(**changes)) for name, changes in cases.items()}
    usual = shown["usual"]
    return {
        name: text if text is usual else [line for line in text if line not in usual]
        for name, text in shown.items()
    }


def end_of(found: RecommendationRecord) -> list[str]:
    return on_terminal(recommendation_view(found))


def last_screens() -> dict[str, list[str]]:
    """Return the last screen of some runs, whole."""
    once = "1,000 requests/s met p99 within 50 ms once: there was no time to confirm it again."
    trace = WorkloadRecord(arrivals="trace t.csv", trace="trace.csv", protocol="grpc", shared_memory="system")
    cases: dict[str, dict[str, Any]] = {
        "certified": {},
        "provisional": {
            "status": "provisional",
            "exit_code": 96,
            "winner": trial(certificate=certificate(runs=1)),
            "status_reason": once,
            "advice": "Give --time-budget 50s: two confirmations usually take 20 s.",
        },
        "worse": {"status": "worse", "exit_code": 97, "status_reason": "Worse than runs/before: capacity."},
        "your own, few lines changed": {"config_diff": "--- a/m\n+++ b/m\n@@ -1 +1 @@\n-count: 1\n+count: 2\n"},
        "your own, unchanged": {"config_diff": ""},
        "a trace over gRPC": {"workload": trace, "let_through": GRPC_BETTER},
    }
    return {
        name: on_terminal(answer_view(recommendation(**changes), Path("runs/m")), width=80)
        for name, changes in cases.items()
    }


def on_terminal(view: Any, width: int = 100) -> list[str]:
    console = SafeConsole(width=width, force_terminal=False, file=None)
    with console.capture() as capture:
        console.print(view, crop=False)
    return [line.rstrip() for line in capture.get().splitlines()]


def fleet_of(run: Path) -> list[str]:
    return on_terminal(fleet_view(plan_fleet([run], rate_per_s=2500.0, headroom=0.1)))


def top_of(folder: Path, found: RecommendationRecord) -> list[str]:
    report = report_of(read_evidence(run_dir(folder, found, trial())))
    return [report.headline, *report.lead, *report.caveats]


def test_texts(tmp_path: Path) -> None:
    known, certified = run_dir(tmp_path / "run", recommendation(), trial()), certifications(tmp_path)
    found = {
        "notes": {f"{case}: {note.code}": note.text for case, one in certified.items() for note in one.notes},
        "caveats": {caveat.name: caveat.value for caveat in Caveat}
        | {"lower confidence": str(certified["low rate"].certificate.caveat).split("; ")[0]},
        "tops of reports": reports(tmp_path),
        "use of time": uses_of_time(),
        "reasons of trials": reasons(),
        "last screens": last_screens(),
        "ends of runs": ends_of_runs(),
        "a fleet": fleet_of(known),
        "sections of a report": [part.title for part in report_of(read_evidence(known)).sections],
    }
    if os.environ.get("UPDATE_GOLDENS"):
        GOLDEN.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
        pytest.fail(f"{GOLDEN.name} has been rewritten: read the difference, then run without UPDATE_GOLDENS")
    assert found == json.loads(GOLDEN.read_text())
