"""Tests of the figures in the report of a run: compared at one rate, priced at usual rates, confirmed or not."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from parsed_page import Page
from recommendations import certificate, config, measurement, recommendation, run_dir, trial

from loadgen.console import SafeConsole
from loadgen.reports import kit
from loadgen.spec.limits import LatencyLimit
from optimizer.config import OptimizeConfig
from optimizer.reports import plots, tables
from optimizer.reports.evidence import Evidence, read_evidence
from optimizer.reports.report import commands, html_page, report_of
from optimizer.reports.terminal import explanation_view
from optimizer.reports.trial_tables import LONGEST_REASON, load_run_answer, reason_of, short_and_rest
from optimizer.run.progress import trial_line
from optimizer.run_file import save_config
from search.answer.explain import Explanation
from search.records.confirmations import ConfirmationRecord
from search.records.recommendation import RecommendationRecord
from search.records.slo import Slo, WorkloadRecord
from search.records.trial import LoadRunRecord


def default_at(rate_per_s: float, **changes: object) -> RecommendationRecord:
    """Return a recommendation whose default was measured at a rate; the recommended one was at 100/s."""
    slow = measurement(rate_per_s=rate_per_s, latency_p99_ms=900.0)
    known = {"config": config(max_batch_size=4), "measurement": slow, "certificate": None, **changes}
    return recommendation(baseline=trial(0, **known), gain=None)


def texts(table: kit.Table | None) -> list[list[str]]:
    assert table is not None
    return [[cell.text for cell in row] for row in table.rows]


@pytest.mark.parametrize(("rate_per_s", "roles"), [(105.0, 2), (400.0, 1), (50.0, 1)])
def test_latencies_are_compared_at_one_rate_alone(tmp_path: Path, rate_per_s: float, roles: int) -> None:
    report = report_of(read_evidence(run_dir(tmp_path / "run", default_at(rate_per_s))))
    assert len(report.plots["quantiles"]["roles"]) == roles
    assert len({bar["role"] for bar in report.plots["stages"]["bars"]}) == roles
    stages = next(part.table for part in report.sections if part.plot and part.plot[0] == "stages")
    assert stages is not None
    assert len(stages.headings) == 1 + roles


def test_latencies_at_one_rate_a_row_are_measured_there_or_left_out() -> None:
    run = LoadRunRecord(rate_per_s=790.0, latency_ms=35.0, met=True, trusted=True)
    found = default_at(2737.0, rate_at_limit_per_s=800.0, load_runs=(run,))
    table = tables.latencies(found)
    assert table is not None
    assert table.headings == ("p99 at", "recommended", "Triton default")
    assert texts(table) == [
        ["800/s", "not measured", "35.0 ms"],
        ["1,000/s", "30.0 ms", "over its capacity of about 800/s"],
    ]


def test_marks_over_any_limit_say_so_and_are_not_on_the_frontier(tmp_path: Path) -> None:
    over, within = measurement(rate_per_s=300.0, latency_p99_ms=80.0), measurement(rate_per_s=200.0)
    slow_median = measurement(rate_per_s=400.0, latency_p50_ms=45.0)
    slo = Slo(limits=(LatencyLimit(limit_ms=50.0), LatencyLimit(quantile=0.5, limit_ms=20.0)))
    found = recommendation(slo=slo, baseline=None, gain=None)
    tried = [
        trial(number, measurement=seen, certificate=None)
        for number, seen in enumerate((over, within, slow_median))
    ]
    drawn = plots.rates(read_evidence(run_dir(tmp_path / "run", found, *tried)))
    assert drawn is not None
    assert {point["rate"]: point["over"] for point in drawn[1]["points"]} == {300: True, 200: False, 400: True}
    assert [rate for rate, _ in drawn[1]["frontier"]] == [1000.0]


def test_the_first_limits_quantile_is_drawn(tmp_path: Path) -> None:
    slo = Slo(limits=(LatencyLimit(quantile=0.9, limit_ms=50.0),))
    drawn = plots.rates(read_evidence(run_dir(tmp_path / "run", recommendation(slo=slo), trial(certificate=None))))
    assert drawn is not None
    assert [point["ms"] for point in drawn[1]["points"]] == [20.0]


def test_the_traffic_to_serve_is_priced_at_usual_rates_also_pro_rata() -> None:
    table = tables.replicas(recommendation())
    assert table is not None
    rows = texts(table)
    assert [row[0] for row in rows] == ["500", "1,000", "2,000", "2,500", "5,000"]
    assert rows[3] == ["2,500", "3", "$1.50", "$1,095.00", "$912.50", "5", "$1,825.00", "$1,825.00"]
    assert [row[0].style for row in table.rows] == ["number", "number", "number", "number main", "number"]
    assert table.headings[-1] == "default: pro rata"


@pytest.mark.parametrize(("rate_per_s", "option"), [(606.58, "606.5"), (18.669, "18.66"), (30_159.7, "30159")])
def test_the_rate_to_check_is_not_above_the_certified_one(tmp_path: Path, rate_per_s: float, option: str) -> None:
    found = recommendation(winner=trial(certificate=certificate(rate_per_s)))
    lines = dict(commands(read_evidence(run_dir(tmp_path / "run", found))))
    assert f" --rate {option} " in lines["Check the certified rate"]


@pytest.mark.parametrize(
    ("kept", "option"), [(None, "/data/inputs"), ("input-data.json", "{run}/input-data.json")]
)
def test_the_rate_is_checked_with_the_inputs_of_the_run(tmp_path: Path, kept: str | None, option: str) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    limits, data = (LatencyLimit(limit_ms=50.0),), Path("/data/inputs")
    save_config(
        OptimizeConfig(model=Path("/models/m.onnx"), limits=limits, output=folder, input_data=data), folder
    )
    run_dir(folder, recommendation(workload=WorkloadRecord(input_data=kept)))
    lines = dict(commands(read_evidence(folder)))
    assert f" --input-data={option.format(run=folder)}" in lines["Check the certified rate"]


CHANGED = "the run changed: 128 of 130 requests over p99 <= 50 ms were due in its second half"


def confirmation(**changes: object) -> ConfirmationRecord:
    known = {
        "trial": 0, "again": False, "rate_per_s": 703.0, "met": False, "answer": "inconclusive", "reason": "",
        "overloaded": False, "seconds": 22.5, "requests": 15_201, "violations": 159, "latency_ms": 51.6,
        "problems": (),
    }  # fmt: skip
    return ConfirmationRecord(**{**known, **changes})  # type: ignore[arg-type]


@pytest.fixture
def nothing(tmp_path: Path) -> Evidence:
    """A run of four confirmations that found nothing."""
    folder = tmp_path / "run"
    folder.mkdir()
    limits = (LatencyLimit(limit_ms=50.0),)
    save_config(OptimizeConfig(model=Path("/models/m.onnx"), limits=limits, output=folder), folder)
    run_dir(folder, None, trial(0, certificate=None))
    late = {"rate_per_s": 500.0, "problems": ("requests left late",)}
    tried = (
        confirmation(),
        confirmation(answer="violated", overloaded=True, violations=9000),
        confirmation(change=CHANGED),
        confirmation(**late),
    )
    (folder / "confirmations.jsonl").write_text("".join(one.model_dump_json() + "\n" for one in tried))
    return read_evidence(folder)


def test_a_run_that_found_nothing_shows_its_confirmations(nothing: Evidence) -> None:
    part = next(part for part in report_of(nothing).sections if part.title == "Confirmations of a rate")
    assert [[row[3], row[6]] for row in texts(part.table)] == [
        ["159 of 15,201", "inconclusive"],
        ["9,000 of 15,201", "violated: overloaded"],
        ["159 of 15,201", f"inconclusive: {CHANGED}"],
        ["159 of 15,201", "not trusted: requests left late"],
    ]
    drawn = json.loads(Page(html_page(nothing)).scripts[0])["rates"]
    assert [one["answer"] for one in drawn["confirmations"]] == ["inconclusive", "violated", "inconclusive"]


def certainty(folder: Path, runs: Sequence[LoadRunRecord], tried: ConfirmationRecord) -> kit.Data:
    """Return the plot of a run whose machine was seen for two seconds, from 1000 on."""
    run_dir(folder, recommendation(), trial(1, load_runs=tuple(runs)))
    (folder / "confirmations.jsonl").write_text(tried.model_dump_json() + "\n")
    (folder / "machine_speed.jsonl").write_text('{"began_unix_s": 1000, "speeds": [1.0, 0.5]}\n')
    drawn = plots.certainty(read_evidence(folder))
    assert drawn is not None
    return drawn[1]


LOAD_RUN = LoadRunRecord(rate_per_s=700.0, latency_ms=35.0, met=True, trusted=True, seconds=3.0)


def test_every_load_run_is_drawn_with_what_it_decided_when_it_was_sent(tmp_path: Path) -> None:
    each: tuple[dict[str, Any], ...] = (
        {"answer": "met"},
        {"answer": "violated", "met": False},
        {"answer": "inconclusive"},
        {"answer": "inconclusive", "overloaded": True},
        {"answer": "met", "trusted": False},
        {"seconds": None},
    )
    runs = [LOAD_RUN.changed(**one, began_unix_s=1000.0 + 10 * number) for number, one in enumerate(each)]
    hours_later = confirmation(trial=1, began_unix_s=9000.0, answer="met", seconds=20.0)
    drawn, silence_s = certainty(tmp_path / "run", runs, hours_later), plots.MAX_SILENCE_S
    decided = [run["decided"] for run in drawn["runs"] if not run["confirms"]]
    assert decided == ["met", "violated", "inconclusive", "violated", "not trusted"]
    assert [run["from"] for run in drawn["runs"]] == [0.0, 10.0, 20.0, 30.0, 40.0, 43.0 + silence_s]
    assert [one["at"] for one in drawn["silences"]] == [43.0 + silence_s / 2]
    assert [(one["from"], one["speeds"]) for one in drawn["speeds"]] == [(0.0, (1.0, 0.5))]
    assert drawn["certified"][0]["rate"] == 1000.0


def test_load_runs_of_earlier_versions_are_drawn_one_after_the_other(tmp_path: Path) -> None:
    drawn = certainty(tmp_path / "run", [LOAD_RUN, LOAD_RUN.changed(began_unix_s=1000.0)], confirmation(trial=1))
    assert [run["from"] for run in drawn["runs"]] == [0.0, 3.0, 6.0]
    assert (drawn["timed"], drawn["speeds"]) == (False, [])


def test_a_change_is_said_in_the_same_words_everywhere() -> None:
    run = LoadRunRecord(rate_per_s=790.0, latency_ms=35.0, met=False, trusted=True, violations=130, change=CHANGED)
    assert load_run_answer(run) == f"looks violated: {CHANGED}"
    changed = trial(load_runs=(run, run.changed(change=None)))
    assert reason_of(changed) == f"the capacity was found; at 790/s {CHANGED}"
    assert f"at 790/s {CHANGED}" in trial_line(changed, is_best=False)
    explained = Explanation(
        trial=changed, role=None, why=(), predicted=(), seen=(), ended="",
        confirmations=(confirmation(change=CHANGED),),
    )  # fmt: skip
    console = SafeConsole(width=400, force_terminal=False, file=None)
    with console.capture() as capture:
        console.print(explanation_view(explained))
    assert capture.get().count(CHANGED) == 2


def test_the_answer_of_a_load_run_that_was_not_trusted_is_why() -> None:
    run = LoadRunRecord(rate_per_s=790.0, latency_ms=35.0, met=True, trusted=False, problems=("late", "stalled"))
    assert load_run_answer(run) == "not trusted: late; stalled"
    assert load_run_answer(run.model_copy(update={"problems": ()})) == "not trusted"


def test_the_headline_has_the_tone_of_the_outcome(tmp_path: Path) -> None:
    once = recommendation(winner=trial(certificate=certificate(runs=1)), status="provisional")
    for name, found, tone in (("a", recommendation(), ""), ("b", once, "provisional")):
        assert report_of(read_evidence(run_dir(tmp_path / name, found))).tone == tone


def test_a_long_reason_is_folded_on_the_page_and_cut_in_markdown(tmp_path: Path) -> None:
    log = "m does not load: " + 40 * "an error, and a path; "
    short, whole = short_and_rest(log)
    assert len(short) <= LONGEST_REASON + 4
    assert whole == log
    failed = trial(1, state="failed", reason=log, measurement=None, certificate=None, rate_at_limit_per_s=None)
    evidence = read_evidence(run_dir(tmp_path / "run", recommendation(), failed))
    assert log in Page(html_page(evidence)).text
    assert log not in kit.markdown(report_of(evidence))
