"""What `confirmations.jsonl` says of every attempt to confirm a rate, and which lines are none."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from simulated_queues import BATCHING_GPU

from loadgen.spec.limits import LatencyLimit
from loadgen.statistics.confirm import Attempt
from loadgen.statistics.slo_test import certify
from search.records.confirmations import CONFIRMATIONS_FILE, believed, keep_attempt, read_confirmations

SEEN = replace(
    certify(next(BATCHING_GPU.logs(1000.0, 5, seed=3, runs=1)), LatencyLimit(limit_ms=50)),
    answer="met",
    reason="few were late",
    n=2345,
    violations=7,
    latency_ms=31.25,
)
BELIEF = believed(900.0, 0.1, covered_per_s=850.0, chance=0.5, needed_s=20.0)
LINE: dict[str, Any] = {
    "schema_version": 2,
    "trial": 4,
    "again": True,
    "rate_per_s": 812.5,
    "met": True,
    "answer": "met",
    "reason": "few were late",
    "overloaded": False,
    "seconds": 6.5,
    "requests": 2345,
    "violations": 7,
    "model": None,
    "latency_ms": 31.25,
    "problems": [],
    "burst": SEEN.burst,
    "change": None,
    "believed": json.loads(BELIEF.model_dump_json()),
    "began_unix_s": None,
}


def attempt(**changes: Any) -> Attempt:
    known: dict[str, Any] = {
        "rate_per_s": 812.5,
        "load_s": 6.5,
        "verdict": SEEN,
        "overloaded": False,
        "problems": (),
    }
    return Attempt(**{**known, **changes})


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / CONFIRMATIONS_FILE).read_text().splitlines()]


def test_a_line_says_what_the_attempt_showed(tmp_path: Path) -> None:
    keep_attempt(tmp_path, attempt(), trial=4, again=True, belief=BELIEF)
    later = attempt(overloaded=True, problems=("sent late",))
    keep_attempt(tmp_path, later, trial=5, again=False, change="it changed", began_unix_s=1e9)
    late = {"trial": 5, "again": False, "met": False, "overloaded": True, "problems": ["sent late"]}
    assert lines(tmp_path) == [
        LINE,
        {**LINE, **late, "change": "it changed", "believed": None, "began_unix_s": 1e9},
    ]
    first, second = read_confirmations(tmp_path)
    assert json.loads(first.model_dump_json()) == LINE
    assert (second.trial, second.problems) == (5, ("sent late",))


def test_of_several_limits_the_one_that_decides_gives_answer_and_reason_and_the_first_the_figures(
    tmp_path: Path,
) -> None:
    other = replace(SEEN, answer="violated", reason="half were late", violations=1200, latency_ms=90.0)
    keep_attempt(tmp_path, attempt(others=(other,)), trial=4, again=True, belief=BELIEF)
    assert lines(tmp_path) == [{**LINE, "met": False, "answer": "violated", "reason": "half were late"}]


@pytest.mark.parametrize("latency_ms", [math.inf, math.nan])
def test_a_latency_that_too_many_failures_hide_is_null(latency_ms: float, tmp_path: Path) -> None:
    keep_attempt(
        tmp_path, attempt(verdict=replace(SEEN, latency_ms=latency_ms)), trial=4, again=True, belief=BELIEF
    )
    assert lines(tmp_path) == [{**LINE, "latency_ms": None}]
    assert [one.latency_ms for one in read_confirmations(tmp_path)] == [None]
