"""Records of load tests as schema version 1 wrote them, of two runs against a server that delays by 2 ms."""

import json
from pathlib import Path
from typing import Any

import pytest

from loadgen.command.baseline import read_baseline
from loadgen.exit_codes import CODES
from loadgen.records.record import LoadTestRecord

RECORDED = Path(__file__).parents[3] / "data" / "version_1_load_tests"


def raw(name: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((RECORDED / name).read_text())
    return record


def test_answers_are_in_the_words_of_version_2() -> None:
    before = raw("plain.json")
    assert before["outcome"] == "broken"
    record = read_baseline(RECORDED / "plain.json")
    assert (record.schema_version, record.outcome) == (2, "violated")
    assert [check.answer for check in record.checks] == ["violated", "inconclusive"]
    assert [check.observed_answer for check in record.checks] == ["violated", "met"]
    assert record.exit_code == before["exit_code"] == CODES["violated"]


def test_a_search_for_the_highest_rate_is_read() -> None:
    before = raw("find-max.json")["capacity"]
    assert before["undecided"] is False
    record = read_baseline(RECORDED / "find-max.json")
    assert record.capacity is not None
    assert record.outcome == "met"
    assert record.capacity.inconclusive is False
    assert record.capacity.certified_rate_per_s == before["certified_rate_per_s"]
    assert [probe.answer for probe in record.capacity.probes] == [
        "client late",
        "looks met",
        "looks met",
        "confirmed",
    ]


@pytest.mark.parametrize("name", ["plain.json", "find-max.json"])
def test_nothing_else_is_changed(name: str) -> None:
    now = LoadTestRecord.model_validate(raw(name)).model_dump(mode="json")
    before = raw(name)
    for record in (before, now):
        for part in ("schema_version", "outcome", "checks", "capacity"):
            del record[part]
    for row in now["measurement"]["server"]["batches"]:
        assert row.pop("cold") is False
    added = {name: now.pop(name) for name in now.keys() - before.keys()}
    assert set(added.values()) <= {None, False}
    assert now == before
