"""The page of a load test in a real browser: nothing complains, its plots are drawn, and it fits a phone."""

from collections.abc import Callable
from pathlib import Path

import pytest
from browser import browser_path, page
from load_records import record
from page_looks import LOOKS, faults
from simulated_generator import SimulatedGenerator
from simulated_streams import SimulatedStreams
from virtual_load_test import carried_out, order_of

from loadgen.records.record import LoadTestRecord
from loadgen.reports.views import html_page

SHOTS = Path(__file__).parents[2] / "build" / "screenshots"

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(browser_path() is None, reason="no Chromium or Chrome on PATH, and CHROMIUM is not set"),
]
MARKS = (
    "Object.fromEntries([...document.querySelectorAll('[data-plot]')].map(place => [place.dataset.plot,"
    " place.querySelectorAll('svg [aria-label] :is(path, rect, circle)').length]))"
)


FEW_TICKS = """
[...document.querySelectorAll('.plot [aria-label$="tick label"]')]
  .filter(axis => axis.querySelectorAll("text").length < 2).map(axis => axis.closest("figure").id)
"""
STREAMS = {
    "url": "http://127.0.0.1:9/v1", "model": "m", "api": "openai-chat", "prompt_tokens": 8, "output_tokens": 41,
    "ttft_p95": "300ms", "tpot_p95": "12ms", "attainment": "90%",
}  # fmt: skip
TRITON = {"url": "http://127.0.0.1:9", "model": "m", "p99": "50ms"}
RUNS: dict[str, Callable[[], LoadTestRecord]] = {
    "steady": record,
    "two-requests": lambda: carried_out(order_of(**TRITON, rate=2.0, duration="2s"), SimulatedGenerator()),
    "stream": lambda: carried_out(order_of(**STREAMS, rate=20.0, duration="40s"), SimulatedStreams(slots=12)),
    "find-max": lambda: carried_out(
        order_of(**TRITON, find_max=True, duration="90s"), SimulatedGenerator(service_ms=5.0)
    ),
    "failing": lambda: carried_out(
        order_of(**TRITON, find_max=True, duration="90s"), SimulatedGenerator(service_ms=5.0, failing=0.5)
    ),
    "stream-find-max": lambda: carried_out(
        order_of(**STREAMS, find_max=True, duration="200s"), SimulatedStreams(cut_off=0.001)
    ),
}
BOTH = {"quantiles:latency", "timeline:latency"}
PLOTS = {
    "stream": {f"{plot}:{time}" for plot in ("quantiles", "timeline") for time in ("ttft", "tpot", "latency")},
    "find-max": {"capacity", *BOTH},
    "failing": {"capacity", *BOTH},
}
PLOTS["stream-find-max"] = {"capacity", *PLOTS["stream"]}


@pytest.mark.parametrize("name", RUNS)
def test_the_page_draws_what_was_asked_fetches_nothing_and_fits(tmp_path: Path, name: str) -> None:
    """Narrow ranges, single points and failures too: no axis is without a scale."""
    chromium = browser_path()
    assert chromium is not None
    SHOTS.mkdir(parents=True, exist_ok=True)
    (tmp_path / "load.html").write_text(html_page(RUNS[name]()), encoding="utf-8")
    with page(chromium, tmp_path / "profile") as tab:
        tab.look_like(width=390)
        tab.open(tmp_path / "load.html")
        marks = tab.value(MARKS)
        assert set(marks) == PLOTS.get(name, BOTH)
        assert min(marks.values()) >= 3
        if name == "steady":  # a mark for each stretch with failures
            drawn = "document.querySelector('[data-plot^=timeline]').textContent.split('▼').length - 1"
            assert tab.value(drawn) == 3
        for look, how in LOOKS.items():
            tab.look_like(**how)  # type: ignore[arg-type]
            tab.settle()
            assert faults(tab) == {}, look
            assert tab.value(FEW_TICKS) == [], look
            tab.screenshot(SHOTS / f"loadtest-{name}-{look}.png")
        assert tab.complaints == []
        assert [url for url in tab.requests if not url.startswith(("file:", "data:"))] == []
