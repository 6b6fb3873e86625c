"""The record as JUnit XML: a test case per limit, so that a pipeline shows which one is violated."""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree import ElementTree as ET

from loadgen.measurement.streams import GOOD
from loadgen.printable import printable
from loadgen.records.formats import (
    HEADLINES,
    UNKNOWN,
    beyond_in_words,
    comparison_in_words,
    errors_in_words,
    format_ms,
    format_rate,
    load_in_words,
    observed_in_words,
)
from loadgen.records.record import LoadTestRecord


def junit_xml(record: LoadTestRecord) -> str:
    """Return one suite. A violated limit is a failure; an inconclusive or untrustworthy one an error, no pass."""
    suite = ET.Element("testsuite", name="loadtest", timestamp=record.started_at.strftime("%Y-%m-%dT%H:%M:%S"))
    properties = ET.SubElement(suite, "properties")
    for name, value in _properties(record).items():
        ET.SubElement(properties, "property", name=name, value=_xml_text(value))
    for name, tag, message, text in _findings(record):
        case = _case(suite, record, name)
        if tag:
            ET.SubElement(case, tag, message=_xml_text(message)).text = _xml_text(text)
    for kind, tag in (("failures", "failure"), ("errors", "error")):
        suite.set(kind, str(len(suite.findall(f"testcase/{tag}"))))
    suite.set("tests", str(len(suite.findall("testcase"))))
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _findings(record: LoadTestRecord) -> Iterator[tuple[str, str, str, str]]:
    """(name, "failure", "error" or "", message, text) of each test case."""
    reasons = "\n".join(record.reasons)
    spoilt = "error" if record.outcome in ("untrustworthy", "interrupted") else ""
    for check in record.checks:
        counted = check.counted(accept_observed=record.accept_observed)
        tag = spoilt or {"met": "", "violated": "failure", "inconclusive": "error"}[counted]
        answers = f"{check.observed_answer or UNKNOWN} in this run; beyond it {beyond_in_words(check)}"
        message = f"the run was {record.outcome}" if spoilt else f"{check.name}: {answers}"
        yield check.name, tag, message, f"{observed_in_words(check)}; {check.reason}"
    for compared in record.comparison:
        tag = spoilt or ("failure" if compared.answer == "worse" else "")
        name = f"{compared.figure} is not worse than the baseline"
        yield name, tag, f"{compared.figure} is {compared.answer}", comparison_in_words(compared)
    tag = {"met": "", "measured": "", "violated": "failure", "worse": "failure"}.get(record.outcome, "error")
    yield "the answer as a whole", tag, HEADLINES[record.outcome].lower(), reasons


def _case(suite: ET.Element, record: LoadTestRecord, name: str) -> ET.Element:
    seconds = record.measurement.duration_s if record.measurement is not None else 0.0
    classname = f"loadtest.{_xml_text(record.target.model_name)}"
    return ET.SubElement(suite, "testcase", classname=classname, name=_xml_text(name), time=f"{seconds:.3f}")


def _properties(record: LoadTestRecord) -> dict[str, str]:
    properties = {"url": record.target.url, "load": load_in_words(record.load), "tool": record.tool}
    measured = record.measurement
    if measured is not None:
        properties |= {
            "requests": str(measured.requests),
            "errors": errors_in_words(record),
            "p50_ms": format_ms(measured.latency_p50_ms),
            "p99_ms": format_ms(measured.latency_p99_ms),
            "achieved_rate_per_s": f"{measured.achieved_rate_per_s:.6g}",
            "send_lag_p99_ms": format_ms(measured.send_lag_p99_ms),
        }
        properties |= {} if measured.streams is None else {"good": GOOD}
    if record.capacity is not None:
        properties["highest_rate_per_s"] = format_rate(record.capacity.certified_rate_per_s)
    return properties


def _xml_text(text: str) -> str:
    """The text as XML can hold it, which control characters are not; a server's error message may have any."""
    return printable(text, lines=True)
