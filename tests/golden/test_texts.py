"""The sentences of certification and of reports, word by word. UPDATE_GOLDENS=1 rewrites them, and fails."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from certifications import DEFAULT, SLO, Ended, bench, ended, tried
from recommendations import certificate, contention, measurement, recommendation, run_dir, trial

from optimizer.reports.evidence import read_evidence
from optimizer.reports.report import report_of
from search.certification.certify import Caveat
from search.records.recommendation import RecommendationRecord
from search.records.slo import ObjectiveRecord
from search.trials.budget import least_certificate_s
from search.trials.objective import Objective

GOLDEN = Path(__file__).with_name("texts.json")
GIB = 2**30


def certifications(folder: Path) -> dict[str, Ended]:
    """Return a certification for each note that does not depend on the rates which certification chooses."""
    latency = Objective(name="latency", rate_per_s=500.0)

    def at_500(batch: int, number: int, latency_ms: float) -> Any:
        seen = measurement(rate_per_s=500.0, latency_p99_ms=latency_ms)
        return tried(folder, batch, number, measurement=seen)

    quicker = bench(service_s=lambda config, size: 0.005 / (2.0 if config.max_batch_size == DEFAULT else 1.0))
    short_s = 1.7 * least_certificate_s(20.0, SLO, 0.8)
    one = tried(folder, 8, 1)
    return {
        "latency": ended(folder, quicker, at_500(DEFAULT, 0, 12.0), at_500(8, 1, 9.0), objective=latency),
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
    disturbed = trial(0, certificate=certificate(500.0, contention=busy))
    cost = recommendation().cost
    energies = {"energy_kwh_per_million_inferences": 0.02, "baseline_energy_kwh_per_million_inferences": 0.03}
    latency = {"objective": ObjectiveRecord(name="latency", rate_per_s=900.0), "gain": None}
    cases = {
        "cheaper": recommendation(),
        "default not certified": recommendation(
            baseline=trial(0, certificate=None, rate_at_limit_per_s=432.0), gain=None
        ),
        "default is the best": recommendation(winner=winner, baseline=winner, gain=1.0),
        "energy": recommendation(objective=ObjectiveRecord(name="energy"), cost=cost.model_copy(update=energies)),
        "latency": recommendation(**latency),
        "latency, default not certified": recommendation(**latency, baseline=trial(0, certificate=None)),
        "caveat": recommendation(winner=trial(certificate=certificate(caveat="the run was stopped"))),
        "contention of winner": recommendation(winner=trial(certificate=certificate(contention=busy))),
        "contention of default": recommendation(baseline=disturbed),
        "contention of run": recommendation(contention=busy),
    }
    tops = {name: top_of(folder / name, found) for name, found in cases.items()}
    usual = tops["cheaper"]
    return {
        name: top if top is usual else [line for line in top if line not in usual] for name, top in tops.items()
    }


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
        "sections of a report": [part.title for part in report_of(read_evidence(known)).sections],
    }
    if os.environ.get("UPDATE_GOLDENS"):
        GOLDEN.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
        pytest.fail(f"{GOLDEN.name} has been rewritten: read the difference, then run without UPDATE_GOLDENS")
    assert found == json.loads(GOLDEN.read_text())
