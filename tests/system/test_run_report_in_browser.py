"""The report in a real browser: nothing complains, every plot is drawn, and it fits screens, phones and paper."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Page, browser_path, page
from page_looks import LOOKS, faults

from optimizer.reports import plots
from optimizer.reports.evidence import read_evidence
from optimizer.reports.report import write_report
from search.records.recommendation import NoRecommendationRecord
from search.records.run_files import PredictedRecord, read_recommendation, write_predictions

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
RECORDED = DATA / "recorded_runs" / "early"
CONFIRMED = DATA / "recorded_runs" / "confirmed"
ENSEMBLE = DATA / "recorded_runs" / "ensemble"
CONFIGURATION = DATA / "recorded_runs" / "run.json"
PICTURE = ROOT / "docs" / "images" / "report.png"
SHOTS = ROOT / "build" / "screenshots"
"""Kept for people to look at, and for CI to keep."""

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(browser_path() is None, reason="no Chromium or Chrome on PATH, and CHROMIUM is not set"),
]


def found_nothing(folder: Path) -> Path:
    """Return a run without a recommendation: that of a recorded run, if nothing had been confirmed."""
    folder.mkdir()
    outcome = NoRecommendationRecord(
        tritune_version="0.1.0",
        created_at="2026-11-22T10:00:00+00:00",
        status="inconclusive",
        exit_code=96,
        status_reason="No rate could be certified: the time budget of 100 s was too short.",
        advice="Give --time-budget 4m, or go on with --resume.",
    )
    (folder / "recommendation.json").write_text(outcome.model_dump_json())
    shutil.copy(CONFIRMED / "trials.jsonl", folder)
    shutil.copy(CONFIGURATION, folder)
    tried = map(json.loads, (CONFIRMED / "confirmations.jsonl").read_text().splitlines())
    lines = [json.dumps(one) + "\n" for one in tried if not one["met"]]
    (folder / "confirmations.jsonl").write_text("".join(lines))
    return folder


def with_predictions(folder: Path) -> Path:
    """Return a recorded run, as if each batch size with one to three instances had been predicted."""
    shutil.copytree(CONFIRMED, folder)
    winner = read_recommendation(folder).winner.config
    made_up = [
        PredictedRecord(
            config=winner.changed(max_batch_size=batch, instance_count=instances),
            rate_per_s=90.0 * batch / instances,
        )
        for batch in (1, 2, 4, 8, 16, 32, 64)
        for instances in (1, 2, 3)
    ]
    curve = tuple((rate, 5.0 + 1e4 / (900.0 - rate)) for rate in (10.0, 400.0, 700.0, 800.0))
    write_predictions(folder, (*made_up, PredictedRecord(config=winner, rate_per_s=850.0, curve=curve)))
    return folder


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The report of a recorded run in a wide, light window."""
    folder = tmp_path_factory.mktemp("report")
    chromium = browser_path()
    assert chromium is not None
    path = write_report(with_predictions(folder / "run"), output=folder / "report.html")
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
    assert set(marks) == {"rates", "configurations", "replicas", "stages"}
    assert all(count >= 4 for count in marks.values()), marks
    labels = "[...document.querySelectorAll('[data-plot=rates] [aria-label=\"y-axis tick label\"] text')]"
    assert report.value(f"{labels}.map(text => text.textContent)") == ["10", "20", "50", "100", "200", "500"]
    assert report.value("document.querySelectorAll('[data-plot=rates] [aria-label=line] path').length") == 1


def test_what_was_only_predicted_is_hatched_and_the_recommended_is_framed(report: Page) -> None:
    """A cell has a rectangle; one that is hatched or framed has another one above it."""
    layers = report.value(
        "[...document.querySelectorAll('[data-plot=configurations] [aria-label=cell]')].map(layer =>"
        " [layer.querySelectorAll('rect').length, getComputedStyle(layer.querySelector('rect')).fill.slice(0, 4)])"
    )
    measured = sum(cell["how"] != "predicted" for cell in plots.cells(read_evidence(CONFIRMED)))
    assert [count for count, _ in layers] == [21, 21 - measured, 1]
    assert [fill for _, fill in layers[1:]] == ["url(", "none"]


def test_the_lines_to_set_are_copied_or_selected(report: Page) -> None:
    """Headless browsers may refuse the clipboard: then the lines are selected, and the button says so."""
    button = "document.querySelector('.copy')"
    report.value(f"{button}.click()")
    said = report.value(f"new Promise(done => setTimeout(() => done({button}.textContent), 200))")
    assert said in ("Copied", "Selected")
    report.value("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    report.value(f"{button}.click()")
    assert report.value("getSelection().toString().trim()") == report.value(
        "document.querySelector('.card code').textContent.trim()"
    )


@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("report", RECORDED),
        ("report-predicted", None),
        ("report-ensemble", ENSEMBLE),
        pytest.param("report-confirmed", CONFIRMED, marks=pytest.mark.long),
        pytest.param("report-failures", DATA / "recorded_runs" / "failures", marks=pytest.mark.long),
        ("report-nothing", None),
    ],
)
def test_it_can_be_read_on_phones_screens_and_paper(tmp_path: Path, name: str, run: Path | None) -> None:
    made = with_predictions if name == "report-predicted" else found_nothing
    path = write_report(run or made(tmp_path / "run"), output=tmp_path / "report.html")
    chromium = browser_path()
    assert chromium is not None
    with page(chromium, tmp_path / "profile") as tab:
        tab.look_like(width=1280)
        tab.open(path)
        for opened in (True, False):
            tab.value(f"document.querySelectorAll('details').forEach(part => part.open = {json.dumps(opened)})")
            for look, how in LOOKS.items():
                tab.look_like(**how)  # type: ignore[arg-type]
                tab.settle()
                assert faults(tab) == {}, (name, look, opened)
                if not opened:
                    tab.screenshot(SHOTS / f"{name}-{look}.png")
        tab.pdf(SHOTS / f"{name}.pdf")


def test_paper_is_unfolded_and_folded_again(report: Page) -> None:
    report.look_like(width=1280)
    unfolded = "document.querySelectorAll('details.part[open]').length"
    before = report.value(unfolded)
    assert before == 0
    report.look_like(**LOOKS["print"])  # type: ignore[arg-type]
    assert report.value(unfolded) == report.value("document.querySelectorAll('details.part').length") > before
    report.look_like(width=1280)
    assert report.value(unfolded) == before


def test_tables_sort_by_figures_and_back(report: Page) -> None:
    rates = (
        "(() => { const heading = [...document.querySelectorAll('.sortable th')]"
        ".findLast(th => th.textContent === 'rate'); heading.querySelector('button').click();"
        " return [...heading.closest('table').tBodies[0].rows].map(row => Number(row.cells[3].dataset.order)) })()"
    )
    up, down = report.value(rates), report.value(rates)
    assert up == sorted(up)
    assert down == sorted(down, reverse=True)
    assert len(up) == 4


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


def test_load_runs_and_the_speed_of_the_machine_have_one_time_axis(report: Page, tmp_path: Path) -> None:
    report.open(write_report(ENSEMBLE, output=tmp_path / "ensemble.html"))
    report.look_like(width=1280)
    runs, speed = report.value(
        "[...document.querySelectorAll('[data-plot=certainty] [aria-label=\"x-axis tick label\"]')].map(axis =>"
        " [...axis.querySelectorAll('text')].map(one => [one.textContent, one.getBoundingClientRect().x]))"
    )
    assert runs == speed
    assert [text for text, _ in runs] == [str(10 * tick) for tick in range(13)]
    drawn = ":is([aria-label=rule] line, [aria-label=rect] rect)"  # 12 load runs, 75 seconds, and two lines
    assert report.value(f"document.querySelectorAll('[data-plot=certainty] {drawn}').length") == 12 + 75 + 2


def test_the_picture_in_the_documentation(report: Page, tmp_path: Path) -> None:
    if os.environ.get("UPDATE_GOLDENS"):
        report.open(write_report(CONFIRMED, output=tmp_path / "confirmed.html"))
        report.look_like(width=1100)
        report.screenshot(PICTURE, height=1490)
        pytest.fail("the picture was taken anew; look at it and commit it")
    assert 20_000 < PICTURE.stat().st_size < 300_000
