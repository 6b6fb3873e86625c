"""Reports of streams of tokens: each says what is good, and the terminal has the times of tokens."""

from io import StringIO

import pytest
from rich.console import Console
from simulated_streams import SimulatedStreams
from virtual_load_test import carried_out, order_of

from loadgen.measurement.streams import GOOD
from loadgen.records.record import LoadTestRecord
from loadgen.reports.tables import streams
from loadgen.reports.views import answer_view, html_page
from loadgen.reports.write import junit_xml
from loadgen.spec.limits import MEASURES


@pytest.fixture(scope="module")
def record() -> LoadTestRecord:
    values = {
        "url": "http://127.0.0.1:9/v1", "model": "m", "api": "openai-chat", "prompt_tokens": 8,
        "output_tokens": 41, "rate": 20.0, "duration": "40s", "ttft_p95": "300ms", "tpot_p95": "12ms",
        "attainment": "90%",
    }  # fmt: skip
    return carried_out(order_of(**values), SimulatedStreams())


def test_every_report_says_what_is_good(record: LoadTestRecord) -> None:
    terminal = Console(file=StringIO(), width=2000)
    terminal.print(answer_view(record))
    assert isinstance(terminal.file, StringIO)
    pages = (terminal.file.getvalue(), html_page(record), junit_xml(record), record.model_dump_json())
    assert [GOOD in page for page in pages] == [True] * 4


def test_the_times_of_tokens_are_those_of_the_law(record: LoadTestRecord) -> None:
    seen = record.measurement.streams
    assert set(seen.tpot_ms.values()) == {10.0}
    assert seen.ttft_ms["p50"] == pytest.approx(100.0)
    assert seen.finish_reasons == {"length": record.measurement.requests}
    table = streams(seen)
    assert table.headings == ("", "p50", "p90", "p95", "p99")
    assert len(table.rows) == 3
    ttft, tpot = (record.token_times[measure].curve for measure in MEASURES[:2])
    assert set(tpot.latency_ms) == {10.0}
    assert ttft.latency_ms[0] == pytest.approx(100.0)


def test_the_record_is_read_back_with_the_load_that_it_was(record: LoadTestRecord) -> None:
    again = LoadTestRecord.model_validate_json(record.model_dump_json())
    assert again == record
    assert (again.load.api, again.load.prompt_tokens, again.load.output_tokens) == ("openai-chat", 8, 41)
    assert [check.kind for check in again.checks] == ["ttft", "tpot", "attainment"]
