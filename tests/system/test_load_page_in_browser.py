"""The page of a load test in a real browser: nothing complains, both plots are drawn, and it fits a phone."""

from pathlib import Path

import pytest
from browser import browser_path, page
from load_records import record
from page_looks import LOOKS, faults

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


def test_the_page_draws_its_plots_fetches_nothing_and_fits(tmp_path: Path) -> None:
    chromium = browser_path()
    assert chromium is not None
    SHOTS.mkdir(parents=True, exist_ok=True)
    (tmp_path / "load.html").write_text(html_page(record()), encoding="utf-8")
    with page(chromium, tmp_path / "profile") as tab:
        tab.look_like(width=390)
        tab.open(tmp_path / "load.html")
        marks = tab.value(MARKS)
        failures = tab.value("document.querySelector('[data-plot=timeline]').textContent.split('▼').length - 1")
        assert set(marks) == {"quantiles", "timeline"}
        assert min(marks.values()) >= 7
        assert failures == 3  # a mark for each stretch with failures
        for look, how in LOOKS.items():
            tab.look_like(**how)  # type: ignore[arg-type]
            tab.settle()
            assert faults(tab) == {}, look
            tab.screenshot(SHOTS / f"loadtest-{look}.png")
        assert tab.complaints == []
        assert [url for url in tab.requests if not url.startswith(("file:", "data:"))] == []
