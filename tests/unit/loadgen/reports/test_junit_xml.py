from xml.etree import ElementTree as ET

import pytest
from load_records import check, compared, record

from loadgen.records.record import LoadTestRecord
from loadgen.reports.write import junit_xml


def suite(shown: LoadTestRecord) -> ET.Element:
    found = ET.fromstring(junit_xml(shown)).find("testsuite")  # noqa: S314 - our own text
    assert found is not None
    return found


def counts(shown: LoadTestRecord) -> tuple[str | None, str | None, str | None]:
    found = suite(shown)
    return found.get("tests"), found.get("failures"), found.get("errors")


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (record(), ("2", "0", "0")),
        (record(outcome="violated", checks=(check(answer="violated"),)), ("2", "2", "0")),
        (record(outcome="inconclusive", checks=(check(answer="inconclusive"),)), ("2", "0", "2")),
        (record(accept_observed=True, checks=(check(answer="inconclusive"),)), ("2", "0", "0")),
        (record(outcome="untrustworthy"), ("2", "0", "2")),
        (record(outcome="interrupted", checks=()), ("1", "0", "1")),
        (record(comparison=(compared(),)), ("3", "1", "0")),
        (record(comparison=(compared(answer="better"),)), ("3", "0", "0")),
    ],
)
def test_only_what_was_met_passes(shown: LoadTestRecord, expected: tuple[str, str, str]) -> None:
    assert counts(shown) == expected


def test_a_violated_limit_is_named_with_its_figures() -> None:
    case = suite(record(outcome="violated", checks=(check(answer="violated"),))).find("testcase")
    failure = case.find("failure")
    assert case.get("name") == "p99 <= 50 ms"
    assert "41.2 ms (38.0 to 44.9)" in (failure.text or "")


def test_characters_that_xml_cannot_hold_are_replaced() -> None:
    shown = record(outcome="violated", reasons=("bad\x00byte \x1b[31m & <tag> \ufffe",))
    case = suite(shown).findall("testcase")[-1]
    failure = case.find("failure")
    assert failure.text == r"bad\x00byte \x1b[31m & <tag> \ufffe"
