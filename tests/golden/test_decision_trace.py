"""1,000 predictions and 50 whole searches, to the last digit: a move or a rename must not change a decision.

`UPDATE_GOLDENS=1` rewrites the files, and fails: a change of the method says in its commit what it changed here.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from decision_trace import CONFIGURATIONS, SEARCHES, trace
from drawn_servers import KINDS

pytestmark = pytest.mark.long

GOLDEN = Path(__file__).with_name("decisions")


@pytest.mark.parametrize("part", ["configurations", *KINDS])
def test_every_decision_is_as_it_was(part: str) -> None:
    text, golden = trace(part), GOLDEN / f"{part}.jsonl"
    assert text.count("\n") == (CONFIGURATIONS if part == "configurations" else SEARCHES)
    if os.environ.get("UPDATE_GOLDENS"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
        pytest.fail(f"{golden.name} has been rewritten: read the difference, then run without UPDATE_GOLDENS")
    for now, before in zip(text.splitlines(), golden.read_text().splitlines(), strict=True):
        assert now == before, first_difference(json.loads(now), json.loads(before))


def first_difference(now: Any, before: Any, where: str = "") -> str:
    """Where two documents first differ, and how."""
    if type(now) is type(before) and isinstance(now, dict) and now.keys() == before.keys():
        pairs = [(now[key], before[key], f"{where}.{key}") for key in now]
    elif isinstance(now, list) and isinstance(before, list) and len(now) == len(before):
        pairs = [(a, b, f"{where}[{at}]") for at, (a, b) in enumerate(zip(now, before, strict=True))]
    else:
        return "" if now == before else f"{where}: {now} instead of {before}"
    return next((text for text in (first_difference(*pair) for pair in pairs) if text), "")
