"""Situations, and how each ends: its status and exit code, the figures of the reason, the options of the advice.

Those in `recorded.jsonl` were recorded of real runs; those in `situations.json` are
made by hand, for what is hard to bring about.
"""

import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from loadgen.exit_codes import CODES
from loadgen.measurement.cpu_contention import CpuContention, mark_of
from search.answer.advice import rounded_up
from search.answer.conclusion import RunEvidence, conclude
from search.find_best import NothingFound

FIGURE, OPTION = r"\d+(?:[,.]\d+)*", r"--[a-z][a-z0-9-]*(?: \d[\w.]*\w)?"
RUN = TypeAdapter(RunEvidence)
OUTCOMES = Path(__file__).parents[3] / "data" / "outcomes"
RECORDED = [json.loads(line) for line in (OUTCOMES / "recorded.jsonl").read_text().splitlines()]
SITUATIONS = [*json.loads((OUTCOMES / "situations.json").read_text()), *RECORDED]


def run_of(situation: dict[str, Any]) -> RunEvidence:
    return RUN.validate_json(json.dumps(situation["run"]))


def situations() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("situation", SITUATIONS, ids=lambda one: one["name"])


@situations()
def test_a_run_ends_with_the_status_the_figures_and_the_options_that_its_records_support(
    situation: dict[str, Any],
) -> None:
    found = conclude(run_of(situation))
    assert {
        "status": found.status,
        "exit_code": CODES[found.status],
        "figures": " ".join(re.findall(FIGURE, found.reason)),
        "options": " ".join(re.findall(OPTION, found.advice)),
    } == situation["expected"]


@situations()
def test_no_limit_is_advised_from_a_disturbed_measurement(situation: dict[str, Any]) -> None:
    run = run_of(situation)
    disturbed = mark_of(run.contention) is not None or any(one.problems for one in run.confirmations)
    assert not disturbed or "--p99" not in conclude(run).advice


@situations()
def test_only_what_was_decided_is_called_violated(situation: dict[str, Any]) -> None:
    run = run_of(situation)
    decided = any(one.answer == "violated" for one in run.confirmations)
    found = conclude(run)
    assert decided or "violated" not in found.reason
    assert found.status == "violated" or "No configuration meets" not in found.reason


@situations()
def test_a_longer_budget_is_advised_only_if_it_is_longer_and_not_beyond_what_a_certificate_takes(
    situation: dict[str, Any],
) -> None:
    run = run_of(situation)
    advised = re.match(r"Give --time-budget (\d+)s: .* usually take (\d+) s", conclude(run).advice)
    if advised is not None:
        budget_s, needs_s = map(float, advised.groups())
        assert run.budget_s < budget_s <= run.budget_s + needs_s + 10.0


def test_there_are_enough_situations_for_every_status_of_a_search() -> None:
    assert len({one["name"] for one in SITUATIONS}) == len(SITUATIONS)
    assert len(RECORDED) >= 20
    seen = {one["expected"]["status"] for one in SITUATIONS}
    assert seen == set(CODES) - {"met", "measured", "worse", "bad_input", "bug"}


def test_an_interrupt_goes_before_everything_else() -> None:
    for situation in SITUATIONS:
        run = run_of(situation | {"run": situation["run"] | {"interrupted": True}})
        assert conclude(run).status == "interrupted"


def test_the_error_survives_a_process_boundary() -> None:
    seen = CpuContention(watched_s=9.0)
    error = pickle.loads(pickle.dumps(NothingFound("what", "fix", "inconclusive", seen)))  # noqa: S301 - our own
    assert (error.what, error.fix, error.status, error.exit_code) == ("what", "fix", "inconclusive", 96)
    assert error.contention == seen


@pytest.mark.parametrize(("value", "rounded"), [(200.0, 200.0), (200.4, 201.0), (11.0, 11.0), (0.05432, 0.0544)])
def test_a_limit_within_reach_is_never_rounded_down(value: float, rounded: float) -> None:
    assert rounded_up(value) == pytest.approx(rounded, rel=1e-12)
