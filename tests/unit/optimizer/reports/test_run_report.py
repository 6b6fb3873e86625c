"""Tests of the report of a run: its content, its sources, and content that must not get into it."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from parsed_page import Page
from recommendations import (
    accuracy,
    certificate,
    config,
    contention,
    measurement,
    output_accuracy,
    profile,
    recommendation,
    run_dir,
    trial,
)

from loadgen.reports import kit
from loadgen.spec.limits import LatencyLimit
from optimizer.cli import run_command
from optimizer.config import OptimizeConfig
from optimizer.reports.evidence import Evidence, read_evidence
from optimizer.reports.report import html_page, report_of
from optimizer.run_file import save_config
from search.answer.recommend import frontier_of
from search.records.recommendation import ModelRecord, TimeUseRecord
from search.records.slo import Slo
from search.records.trial import GpuRecord, LoadRunRecord, TrialRecord

HOSTILE = '</script><script>alert("x")</script><img src=x onerror=alert(1)> | `rm` {{ 7 * 7 }}'


def markdown(evidence: Evidence) -> str:
    return kit.markdown(report_of(evidence))


LOAD_RUNS = tuple(
    LoadRunRecord(rate_per_s=rate, latency_ms=latency, met=kept, trusted=trusted)
    for rate, latency, kept, trusted in (
        (300.0, 60.0, False, True),
        (100.0, 9.0, True, True),
        (400.0, None, False, True),
        (200.0, 12.0, True, False),
    )
)


def all_states() -> list[TrialRecord]:
    pruned = [
        trial(
            number,
            config=config(max_batch_size=2 ** (number % 4)),
            state="pruned",
            reason="the limit is violated",
            rate_at_limit_per_s=100.0 * number,
            certificate=None,
        )
        for number in range(3, 9)
    ]
    return [
        trial(0, certificate=None, rate_at_limit_per_s=500.0, loading_s=1.0, load_s=9.0),
        trial(1, state="infeasible", reason="too slow", rate_at_limit_per_s=0.0, certificate=None),
        trial(2, state="failed", reason=HOSTILE, rate_at_limit_per_s=None, measurement=None, certificate=None),
        *pruned,
        trial(9, certificate=None, loading_s=1.0, load_s=9.0, load_runs=LOAD_RUNS),
    ]


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return run_dir(tmp_path / "run", recommendation(), *all_states())


def test_the_page_is_whole_and_loads_nothing(whole: Path) -> None:
    page = Page(html_page(read_evidence(whole)))
    assert page.open == []
    assert page.addresses == ["data:,"]
    assert not {"iframe", "img", "object"} & set(page.tags)


def test_the_answer_comes_first_then_the_plots_then_the_tables(whole: Path) -> None:
    report = report_of(read_evidence(whole))
    text = Page(html_page(read_evidence(whole))).text.replace("\N{NO-BREAK SPACE}", " ")
    body = text[text.index(report.subject) :]  # after the title
    assert len(report.lead) == 2
    drawn = [part.title for part in report.sections if part.plot]
    tables = [part.title for part in report.sections if part.table and not part.plot]
    places = [body.index(words) for words in (report.headline, *report.lead, *drawn, *tables, "Commands")]
    assert places == sorted(places)
    assert "optimize --model m.onnx --p99 50ms" in body[places[-1] :]


def test_only_long_tables_after_the_first_are_folded_without_a_card() -> None:
    tables = [kit.Table(headings=("a",), rows=rows * ((kit.Cell(text="1"),),)) for rows in (100, 3, 101)]
    sections = [kit.Section(title=f"part {number}", table=table) for number, table in enumerate(tables)]
    report = kit.Report(title="", subject="", headline="", lead=("",), caveats=(), sections=sections, footer="")
    folded = r'class="part"><summary><h2>(.*?)</h2>'
    assert re.findall(folded, kit.page(report)) == ["part 2"]
    below_a_card = replace(report, card=kit.Card(title="", code=""))
    assert re.findall(folded, kit.page(below_a_card)) == ["part 0", "part 1", "part 2"]


def test_what_comes_from_the_run_cannot_become_markup(whole: Path) -> None:
    hostile = recommendation(
        reason=HOSTILE,
        model=ModelRecord(name="m", file=HOSTILE, sha256="0" * 64, opset=17, batching=HOSTILE),
    )
    harmless = Page(html_page(read_evidence(whole)))
    run_dir(whole, hostile, *all_states())
    page = Page(html_page(read_evidence(whole)))
    assert page.tags.count("script") == harmless.tags.count("script")
    assert "img" not in page.tags
    assert page.text.count(HOSTILE) >= 5
    assert json.loads(page.scripts[0])["rates"]["runs"]


def test_markdown_keeps_hostile_text_in_its_cell(whole: Path) -> None:
    run_dir(whole, recommendation(reason=HOSTILE), *all_states())
    text = markdown(read_evidence(whole))
    assert "<script>" not in re.sub(r"\\<", "", text)
    rows = [line for line in text.splitlines() if line.startswith("| 2 | fp32")]
    assert len(rows) == 1
    assert len(re.findall(r"(?<!\\)\|", rows[0])) == 9


def test_plots_hold_what_the_records_hold(whole: Path) -> None:
    drawn = report_of(read_evidence(whole)).plots
    assert set(drawn) == {"rates", "configurations", "stages", "replicas"}
    assert [point["role"] for point in drawn["rates"]["certified"]] == ["recommended", "Triton default"]
    assert [run["rate"] for run in drawn["rates"]["runs"]] == [300.0, 100.0]  # without untrustworthy runs
    assert drawn["rates"]["limits"] == [{"ms": 50.0, "name": "limit 50 ms"}]
    assert sum(bar["ms"] for bar in drawn["stages"]["bars"]) == pytest.approx(2 * 11.8)
    steps = drawn["replicas"]["steps"]
    assert [step["usd"] for step in steps if step["role"] == "recommended"] == [0.5 * n for n in range(1, 9)]
    assert max(step["to"] for step in steps) == 8000.0


def test_a_role_that_takes_too_many_replicas_has_its_line_alone(whole: Path) -> None:
    slow = trial(0, certificate=certificate(0.5, runs=1))
    run_dir(whole, recommendation(baseline=slow), trial())
    drawn = report_of(read_evidence(whole)).plots["replicas"]
    assert {step["role"] for step in drawn["steps"]} == {"recommended"}
    assert {line["role"] for line in drawn["lines"]} == {"recommended", "Triton default"}


def test_where_the_time_goes_is_said_in_words_and_by_layer(tmp_path: Path) -> None:
    used = TimeUseRecord(summary="Most of it is arithmetic.", winner=profile(), baseline=profile())
    evidence = read_evidence(run_dir(tmp_path / "run", recommendation(time_use=used)))
    for text in (Page(html_page(evidence)).text, markdown(evidence)):
        assert "Most of it is arithmetic." in text
        assert "The slowest of 31 layers, by the profile of onnxruntime" in text
        assert text.count("conv1") == 10  # once, although the default's engine is the same


def test_a_measurement_without_server_timings_or_requests(tmp_path: Path) -> None:
    bare = measurement(server=None, network_and_client_ms=None, latency_p999_ms=None)
    found = recommendation(winner=trial(measurement=bare), baseline=None, gain=None)
    evidence = read_evidence(run_dir(tmp_path / "run", found, trial(measurement=None, certificate=None)))
    assert "stages" not in report_of(evidence).plots
    assert Page(html_page(evidence)).open == []


def saved(folder: Path, **changes: object) -> Path:
    folder.mkdir()
    known = {"model": Path("/models/m.onnx"), "limits": (LatencyLimit(limit_ms=5.0),), "output": folder}
    save_config(OptimizeConfig(**{**known, **changes}), folder)  # type: ignore[arg-type]
    return folder


def test_a_run_that_found_nothing_has_a_report_that_says_so(tmp_path: Path) -> None:
    folder = saved(tmp_path / "run")
    slow = trial(0, state="infeasible", reason="too slow", certificate=None, lone_latency_ms=7.25)
    run_dir(folder, None, slow)
    text = markdown(read_evidence(folder))
    assert "7.25 ms" in text
    assert "too slow" in text
    page = Page(html_page(read_evidence(folder)))
    assert page.open == []
    assert "The recommendation" not in page.text


def test_a_run_that_was_killed_has_a_report_that_says_how_to_go_on(tmp_path: Path) -> None:
    folder = saved(tmp_path / "run")
    run_dir(folder, None, trial(0, certificate=None))
    with (folder / "trials.jsonl").open("a") as file:
        file.write('{"schema_version":1,"number":1,"conf')
    text = markdown(read_evidence(folder))
    assert f"optimize --resume {folder}" in text
    assert "1 trial" in text


def test_the_commands_repeat_the_run_without_its_secrets(tmp_path: Path) -> None:
    folder = saved(
        tmp_path / "a run",
        shapes={"x": (3, 4)},
        price_per_hour_usd=0.5,
        server="remote",
        server_url="http://me:secret@host:8000",
        server_repository="/models of mine",
        storage="postgresql://me:secret@db/optuna",
    )
    run_dir(folder, recommendation())
    text = markdown(read_evidence(folder))
    assert "secret" not in text
    assert "secret" not in html_page(read_evidence(folder))
    assert (
        "optimize --model /models/m.onnx --p99 5ms --shape x:3,4 --server remote --server-url http://host:8000"
        in text
    )
    assert "--server-repository '/models of mine' --price-per-hour 0.5" in text
    assert f"optimize serve '{folder}' --port 8000" in text


def test_report_writes_the_page_and_says_where(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["report", str(whole)]) == 0
    assert capsys.readouterr().out.strip() == str(whole / "report.html")
    assert (whole / "report.html").read_text().startswith("<!doctype html>")
    assert run_command(["report", str(whole), "--markdown"]) == 0
    assert capsys.readouterr().out.startswith("## m: 1,000 requests/s")


def test_a_place_that_cannot_be_written(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(whole / "none" / "x.html")
    assert run_command(["report", str(whole), "--output", path]) == 2
    assert path in capsys.readouterr().err.replace("\n", "")


def test_accuracy_and_gpus_are_shown_where_they_were_measured(tmp_path: Path) -> None:
    exact = output_accuracy(output="z", sqnr_db=None, exact=True)
    gpu = GpuRecord(utilization=0.75, memory_used_bytes=2**31, power_w=151.0, energy_per_1000_inferences_j=None)
    winner = trial(measurement=measurement(gpu=gpu))
    found = recommendation(winner=winner, accuracy=(accuracy(output_accuracy(), exact),))
    evidence = read_evidence(run_dir(tmp_path / "run", found))
    assert 'data-order="1000.0" data-label="SQNR dB"><span>exact</span></td>' in html_page(evidence)
    text = markdown(evidence)
    assert "inputs | y, batch 1 | passed | 41.5 | 0.999990 | 99.50 % |" in text
    assert "| GPUs meanwhile | 75 % busy, 151 W, 2.0 GiB | - |" in text


def test_energy_is_shown_where_it_was_measured(tmp_path: Path) -> None:
    gpu = GpuRecord(utilization=None, memory_used_bytes=None, power_w=None, energy_per_1000_inferences_j=44.28)
    winner = recommendation().winner.changed(measurement=measurement(gpu=gpu))
    text = markdown(read_evidence(run_dir(tmp_path / "run", recommendation(winner=winner))))
    assert "| energy per million, only GPUs | 0.0123 kWh | - |" in text


def test_the_frontier_and_every_limit_stand_in_the_page_and_in_markdown(tmp_path: Path) -> None:
    slo = Slo(
        limits=(LatencyLimit(limit_ms=50.0), LatencyLimit(quantile=0.5, limit_ms=10.0)), max_memory_bytes=2**33
    )
    found = recommendation(slo=slo, frontier=frontier_of([trial(memory_bytes=2**30)]))
    evidence = read_evidence(run_dir(tmp_path / "run", found))
    for text in (html_page(evidence), markdown(evidence)):
        assert f"{slo.text} in 8 GiB" in text
        assert "Frontier of rate and latency" in text
        assert "server&#39;s memory" in text or "server's memory" in text
    assert "--p99 50ms --p50 10ms" in markdown(evidence)


def test_contention_is_shown_at_the_top_and_with_each_trial(tmp_path: Path) -> None:
    busy = contention(34.0, of_s=120.0)
    disturbed = trial(contention=busy, certificate=certificate(contention=busy))
    found = recommendation(winner=disturbed, contention=busy)
    evidence = read_evidence(run_dir(tmp_path / "run", found, trial(0), disturbed))
    for text in (Page(html_page(evidence)).text, markdown(evidence)):
        assert text.count(busy.text[1:]) == 2  # at the top, next to the trial
