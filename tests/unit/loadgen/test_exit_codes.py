"""The table of exit codes: one for both commands, with an order that decides whenever several statuses apply."""

import re
from itertools import chain, combinations
from pathlib import Path
from typing import get_args

import pytest

import loadgen.cli
import optimizer.cli
from loadgen.errors import BadInput, Bug, ClientFailed, EnvironmentFailed, Interrupted
from loadgen.exit_codes import CODES, PRECEDENCE, TABLE, Status, exit_code

ROOT = Path(__file__).parents[3]
STATUSES = get_args(Status)
IN_ORDER = (
    ("interrupted", 130),
    ("bug", 1),
    ("bad_input", 2),
    ("environment_failed", 3),
    ("untrustworthy", 98),
    ("violated", 99),
    ("inconclusive", 96),
    ("provisional", 96),
    ("worse", 97),
    ("certified", 0),
    ("met", 0),
    ("measured", 0),
)


def combined() -> chain[tuple[Status, ...]]:
    return chain.from_iterable(combinations(STATUSES, size) for size in range(1, len(STATUSES) + 1))


def test_every_status_has_one_code() -> None:
    assert dict(IN_ORDER) == {**CODES}
    assert set(CODES) == set(STATUSES)
    assert sorted(PRECEDENCE) == sorted(row.code for row in TABLE)


def test_of_all_combinations_the_first_in_order_decides() -> None:
    for facts in combined():
        expected = next(code for status, code in IN_ORDER if status in facts)
        assert exit_code(facts) == exit_code(facts[::-1]) == expected


def test_an_accepted_provisional_certificate_hides_nothing_else() -> None:
    for facts in combined():
        others = [status for status in facts if status != "provisional"]
        assert exit_code(facts, accept_provisional=True) == exit_code(others or ["certified"])


@pytest.mark.parametrize(
    ("error", "code"), [(BadInput, 2), (Bug, 1), (ClientFailed, 98), (EnvironmentFailed, 3), (Interrupted, 130)]
)
def test_errors_end_with_the_code_of_their_status(error: type[BadInput], code: int) -> None:
    assert error("what", "fix").exit_code == code


@pytest.mark.parametrize("command", [optimizer.cli.optimize, loadgen.cli.loadtest])
def test_both_helps_have_the_whole_table(command: object) -> None:
    rows = re.findall(r"^- (\d+): (.+)$", str(command.__doc__), re.MULTILINE)
    assert rows == [(str(row.code), row.meaning) for row in TABLE]


def test_the_page_has_the_whole_table() -> None:
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", (ROOT / "docs/troubleshooting.md").read_text(), re.MULTILINE)
    assert rows == [(str(row.code), row.meaning) for row in TABLE]
