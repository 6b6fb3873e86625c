"""The report in a real browser: nothing complains, every plot is drawn, and it fits screens, phones and paper."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Page, browser_path, page

from optimizer.reports.write import write_report

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "docs" / "benchmarks" / "2026-11-21-first-light" / "demo"
PICTURE = ROOT / "docs" / "images" / "report.png"
SHOTS = ROOT / "build" / "screenshots"
"""Kept for people to look at, and for CI to keep."""

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(browser_path() is None, reason="no Chromium or Chrome on PATH, and CHROMIUM is not set"),
]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The recorded demo's report in a wide, light window."""
    folder = tmp_path_factory.mktemp("report")
    chromium = browser_path()
    assert chromium is not None
    path = write_report(RECORDED, output=folder / "report.html")
    SHOTS.mkdir(parents=True, exist_ok=True)
    with page(chromium, folder / "profile") as tab:
        tab.look_like(width=1000)
        tab.open(path)
        yield tab


def test_nothing_complains_and_nothing_is_fetched(report: Page) -> None:
    assert report.complaints == []
    assert [url for url in report.requests if not url.startswith(("file:", "data:"))] == []


def test_every_plot_is_drawn(report: Page) -> None:
    marks = report.value(
        "Object.fromEntries([...document.querySelectorAll('[data-plot]')].map(place => [place.dataset.plot,"
        " place.querySelectorAll('svg [aria-label] :is(path, rect, circle)').length]))"
    )
    assert set(marks) == {"rates", "quantiles", "stages", "search", "importance", "replicas"}
    assert all(count >= 4 for count in marks.values()), marks
    points = "document.querySelectorAll('[data-plot=search] [aria-label=dot] :is(path, circle)').length"
    assert report.value(points) == 18  # a mark for each trial
    labels = "[...document.querySelectorAll('[data-plot=rates] [aria-label=\"y-axis tick label\"] text')]"
    assert report.value(f"{labels}.map(text => text.textContent)") == ["20", "50", "100", "200", "500", "1,000"]


@pytest.mark.parametrize(
    ("name", "look"),
    [
        ("light", {"width": 1000}),
        ("dark", {"width": 1000, "scheme": "dark"}),
        ("phone", {"width": 390}),
        ("print", {"width": 718, "media": "print"}),  # A4 within usual margins
    ],
)
def test_it_fits_and_can_be_read(report: Page, name: str, look: dict[str, object]) -> None:
    report.look_like(**look)
    report.settle()
    assert report.value("document.documentElement.scrollWidth") <= look["width"]
    widest = (
        "Math.max(...[...document.querySelectorAll('.plot svg')].map(svg => svg.getBoundingClientRect().right))"
    )
    assert report.value(widest) <= look["width"]
    paper, ink = (
        report.value(f"getComputedStyle(document.body).{what}.match(/[\\d.]+/g).slice(0, 3).map(Number)")
        for what in ("backgroundColor", "color")
    )
    assert contrast(paper, ink) > 7
    assert (sum(paper) > sum(ink)) == (name != "dark")
    smallest = (
        "Math.min(...[...document.querySelectorAll('.plot text')]"
        ".map(text => parseFloat(getComputedStyle(text).fontSize)))"
    )
    assert report.value(smallest) >= 11
    report.screenshot(SHOTS / f"report-{name}.png")
    assert report.complaints == []


def test_tables_sort_by_figures_and_back(report: Page) -> None:
    rates = (
        "(() => { const heading = [...document.querySelectorAll('.sortable th')]"
        ".find(th => th.textContent === 'rate at limit'); heading.querySelector('button').click();"
        " return [...heading.closest('table').tBodies[0].rows].map(row => Number(row.cells[3].dataset.order)) })()"
    )
    up, down = report.value(rates), report.value(rates)
    assert up == sorted(up)
    assert down == sorted(down, reverse=True)
    assert len(up) == 18


def test_pointing_at_a_trial_names_it(report: Page) -> None:
    report.look_like(width=1000)
    spot = report.value(
        "(() => { const dot = document.querySelector("
        "'[data-plot=rates] [aria-label=dot] :is(path, circle)');"
        " dot.scrollIntoView({block: 'center'}); const box = dot.getBoundingClientRect();"
        " return [box.x + box.width / 2, box.y + box.height / 2] })()"
    )
    report.call("Input.dispatchMouseEvent", type="mouseMoved", x=spot[0], y=spot[1])
    report.settle()
    said = (
        "[...document.querySelectorAll('[data-plot=rates] [aria-label=tip]')].map(tip => tip.textContent).join()"
    )
    assert "trial" in report.value(said)


def test_the_picture_in_the_documentation(report: Page) -> None:
    if os.environ.get("UPDATE_GOLDENS"):
        report.look_like(width=900)
        report.value("window.scrollTo(0, 0)")
        report.screenshot(PICTURE, height=1340)
        pytest.fail("the picture was taken anew; look at it and commit it")
    assert 20_000 < PICTURE.stat().st_size < 300_000


def contrast(one: list[float], other: list[float]) -> float:
    """The contrast ratio of two colours as WCAG 2 has it: 1 to 21."""

    def luminance(color: list[float]) -> float:
        parts = [value / 255 for value in color]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)
