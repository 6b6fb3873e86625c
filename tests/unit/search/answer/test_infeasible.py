"""What binds, and which limits are within reach, if lone requests violate the SLO."""

from typing import Any

import pytest
from recommendations import measurement, timings, trial

from loadgen.spec.limits import LatencyLimit
from search.answer.conclusion import RunEvidence, too_slow
from search.records.slo import Slo
from search.records.trial import TrialRecord

SLO = Slo(limits=(LatencyLimit(limit_ms=5.0),))


def over_the_limit(**changes: Any) -> TrialRecord:
    known: dict[str, object] = {"state": "infeasible", "rate_at_limit_per_s": 0.0, "certificate": None}
    return trial(**{**known, **changes})


@pytest.mark.parametrize(
    ("changes", "stage"),
    [
        ({}, "Inference"),
        ({"server": timings(queue_ms=90.0, compute_infer_ms=2.0)}, "Queue"),
        (
            {"server": timings(queue_ms=0.1, compute_infer_ms=0.5), "network_and_client_ms": 60.0},
            "Client and network",
        ),
        ({"server": None, "network_and_client_ms": None}, "none"),
    ],
)
def test_the_stage_that_takes_most_of_a_lone_request_is_named(changes: dict[str, Any], stage: str) -> None:
    seen = measurement(latency_p50_ms=9.0, requests=400, **changes)
    found = too_slow(RunEvidence(slo=SLO, trials=[over_the_limit(lone_latency_ms=8.0, measurement=seen)]))
    assert found is not None
    assert found.status == "violated"
    assert (f"{stage} takes most of it" in found.reason) == (stage != "none")


def test_of_several_limits_those_that_are_missed_are_named() -> None:
    slo = Slo(limits=(LatencyLimit(limit_ms=50.0), LatencyLimit(quantile=0.5, limit_ms=5.0)))
    lone = measurement(latency_p50_ms=5.2, latency_p90_ms=8.3, latency_p99_ms=10.0, requests=40)
    run = RunEvidence(slo=slo, trials=[over_the_limit(lone_latency_ms=8.0, measurement=lone)])
    found = too_slow(run)
    assert found is not None
    assert found.status == "inconclusive"  # 20 of 40 over a p50 may be chance
    surely = RunEvidence(
        slo=Slo(limits=(LatencyLimit(limit_ms=50.0), LatencyLimit(quantile=0.9, limit_ms=5.0))), trials=run.trials
    )
    found = too_slow(surely)
    assert found is not None
    assert found.status == "violated"
    assert surely.slo.text in found.reason
    assert "--p90 9.13ms," in found.advice
    assert "--p99" not in found.advice
