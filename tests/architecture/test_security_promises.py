"""Each promise in SECURITY.md names a test, and the test is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROMISES = [
    cells
    for line in (ROOT / "SECURITY.md").read_text().splitlines()
    if len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 2 and "::" in cells[1]
]


def test_there_are_promises() -> None:
    assert len(PROMISES) > 10


@pytest.mark.parametrize(("promise", "proofs"), PROMISES)
def test_every_promise_names_tests_that_exist(promise: str, proofs: str) -> None:
    named = re.findall(r"`([^`]+)::([^`]+)`", proofs)
    assert named, f"{promise} names no test"
    for path, name in named:
        assert re.search(rf"^def {name}\(", (ROOT / "tests" / path).read_text(), re.MULTILINE), f"{path}::{name}"
