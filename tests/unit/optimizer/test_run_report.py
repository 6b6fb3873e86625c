"""The report of a run: what stands in it, from what, and what cannot get into it."""

import json
import math
import re
from pathlib import Path

import pytest
from parsed_page import Page
from recommendations import certificate, config, measurement, neighbours, recommendation, trial

from optimizer.cli import run_command
from optimizer.config import OptimizeConfig, save_config
from optimizer.reports.evidence import read_evidence
from optimizer.reports.html_page import html_page
from optimizer.reports.markdown import markdown
from optimizer.reports.plots import plots
from search.accuracy_record import AccuracyRecord, OutputAccuracyRecord
from search.convert import trial_to_record
from search.engine_profile import CeilingsRecord, EngineProfileRecord, LayerRecord, TimeUseRecord
from search.frontier import frontier_of
from search.records import (
    GpuRecord,
    LimitRecord,
    LoadRunRecord,
    ModelRecord,
    RecommendationRecord,
    Slo,
)

HOSTILE = '</script><script>alert("x")</script><img src=x onerror=alert(1)> | `rm` {{ 7 * 7 }}'


def run_dir(folder: Path, found: RecommendationRecord | None = None, *trials: object) -> Path:
    folder.mkdir(exist_ok=True)
    if found is not None:
        (folder / "recommendation.json").write_text(found.model_dump_json())
    lines = [trial_to_record(entry).model_dump_json() + "\n" for entry in trials]
    (folder / "trials.jsonl").write_text("".join(lines))
    return folder


LOAD_RUNS = tuple(
    LoadRunRecord(rate_per_s=rate, latency_ms=latency, kept=kept, trusted=trusted)
    for rate, latency, kept, trusted in (
        (300.0, 60.0, False, True),
        (100.0, 9.0, True, True),
        (400.0, None, False, True),
        (200.0, 12.0, True, False),
    )
)


def all_states() -> list[object]:
    pruned = [
        trial(
            number,
            config=config(max_batch_size=2 ** (number % 4)),
            state="pruned",
            reason="the limit breaks",
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


def test_the_answer_and_the_saving_come_before_everything_else(whole: Path) -> None:
    text = Page(html_page(read_evidence(whole))).text
    wanted = (
        "1,000 requests/s with p99 within 50 ms",
        "50 % cheaper than Triton's default configuration: $0.139 instead of $0.278",
        "2,500 requests/s take 3 replicas: $1.50 an hour",
        "The recommendation",
        "Rate and latency of every trial",
        "Latency of recommendation and default",
        "Where the time goes",
        "How the search went",
        "Cost per number of replicas",
        "Machine and versions",
        "optimize --model m.onnx --p99 50ms",
    )
    body = text[text.index("a processor") :]  # behind the title
    places = [body.index(words) for words in wanted]
    assert places == sorted(places)


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
    assert json.loads(page.scripts[0])["search"]["points"]


def test_markdown_keeps_hostile_text_in_its_cell(whole: Path) -> None:
    run_dir(whole, recommendation(reason=HOSTILE), *all_states())
    text = markdown(read_evidence(whole))
    assert "<script>" not in re.sub(r"\\<", "", text)
    rows = [line for line in text.splitlines() if line.startswith("| 2 | fp32")]
    assert len(rows) == 1
    assert len(re.findall(r"(?<!\\)\|", rows[0])) == 9


def test_plots_hold_what_the_records_hold(whole: Path) -> None:
    drawn = plots(read_evidence(whole))
    assert set(drawn) == {"rates", "quantiles", "stages", "search", "importance", "replicas"}
    assert len(drawn["rates"]["points"]) == 9  # all but the one that failed
    assert [point["role"] for point in drawn["rates"]["certified"]] == ["recommended", "Triton default"]
    assert [run["rate"] for run in drawn["rates"]["runs"]] == [100.0, 300.0]  # without what is not to be trusted
    assert drawn["rates"]["limit"] == 50.0
    slowest = max(point["nines"] for point in drawn["quantiles"]["points"])
    assert math.isclose(slowest, 3.0)  # one in a thousand requests
    assert sum(bar["ms"] for bar in drawn["stages"]["bars"]) == pytest.approx(2 * 11.8)
    assert drawn["search"]["best"][-1] == {"s": 20.0, "rate": 1050.0}
    assert sum(bar["share"] for bar in drawn["importance"]["bars"]) == pytest.approx(1.0)
    steps = drawn["replicas"]["steps"]
    assert [step["usd"] for step in steps if step["role"] == "recommended"] == [0.5 * n for n in range(1, 9)]
    assert max(step["to"] for step in steps) == 8000.0


def used_time(name: str = "conv1", summary: str = "Most of it is arithmetic.") -> TimeUseRecord:
    layers = tuple(
        LayerRecord(name=name, operator="Conv", mean_ms=10.0 - n, share=0.1, bound="arithmetic") for n in range(10)
    )
    profile = EngineProfileRecord(
        engine="onnxruntime-fp32",
        batch_size=3,
        execution_ms=60.0,
        layers=layers,
        layer_count=31,
        bound_shares={"arithmetic": 1.0},
        operator_shares={"Conv": 1.0},
        ceilings=CeilingsRecord(flops_per_s=1e11, bytes_per_s=1e10),
        profiler="onnxruntime",
    )
    return TimeUseRecord(summary=summary, winner=profile, baseline=profile)


def test_where_the_time_goes_is_said_in_words_and_by_layer(tmp_path: Path) -> None:
    evidence = read_evidence(run_dir(tmp_path / "run", recommendation(time_use=used_time())))
    for text in (Page(html_page(evidence)).text, markdown(evidence)):
        assert "Most of it is arithmetic." in text
        assert "The slowest of 31 layers, by the profile of onnxruntime" in text
        assert text.count("conv1") == 10  # once, though the default's engine is the same


def test_names_of_layers_are_text(tmp_path: Path) -> None:
    found = recommendation(time_use=used_time(name=HOSTILE, summary=HOSTILE))
    page = Page(html_page(read_evidence(run_dir(tmp_path / "run", found))))
    assert "img" not in page.tags
    assert page.text.count(HOSTILE) == 11


def test_a_run_without_certified_baseline_does_not_claim_a_saving(tmp_path: Path) -> None:
    baseline = trial_to_record(trial(0, certificate=None, rate_at_limit_per_s=432.0))
    found = recommendation(baseline=baseline, gain=None)
    text = markdown(read_evidence(run_dir(tmp_path / "run", found)))
    assert "The saving is not known" in text
    assert "not certified; about 432/s" in text


def test_a_winning_baseline_is_shown_once(tmp_path: Path) -> None:
    winner = trial_to_record(trial(0))
    found = recommendation(winner=winner, baseline=winner, gain=1.0)
    evidence = read_evidence(run_dir(tmp_path / "run", found))
    assert "Nothing to save" in markdown(evidence)
    assert [bar["role"] for bar in plots(evidence)["stages"]["bars"]] == ["recommended"] * 5


def test_a_measurement_without_server_timings_or_requests(tmp_path: Path) -> None:
    bare = measurement(server=None, network_and_client_ms=None, latency_p999_ms=None)
    found = recommendation(winner=trial_to_record(trial(measurement=bare)), baseline=None, gain=None)
    evidence = read_evidence(run_dir(tmp_path / "run", found, trial(measurement=None, certificate=None)))
    assert "stages" not in plots(evidence)
    assert Page(html_page(evidence)).open == []


def saved(folder: Path, **changes: object) -> Path:
    folder.mkdir()
    known = {"model": "/models/m.onnx", "limit_ms": 5.0, "output": folder}
    save_config(OptimizeConfig.model_validate({**known, **changes}), folder)
    return folder


def test_a_run_that_found_nothing_has_a_report_that_says_so(tmp_path: Path) -> None:
    folder = saved(tmp_path / "run")
    slow = trial(0, state="infeasible", reason="too slow", certificate=None, lone_latency_ms=7.25)
    run_dir(folder, None, slow)
    text = markdown(read_evidence(folder))
    assert "No configuration is certified to keep p99 within 5 ms" in text
    assert "answers single requests on an idle server in 7.25 ms" in text
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
    assert "1 trials" in text


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


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (
            lambda run: (run / "recommendation.json").write_text('{"schema_version": 1, "tritu'),
            "not a recommendation",
        ),
        (lambda run: (run / "trials.jsonl").write_text('{"number": "one"}\n'), "Line 1 of"),
        (lambda run: (run / "trials.jsonl").write_bytes(b"\xff\xfe\n"), "cannot be read"),
        (lambda run: (run / "run.json").write_text("{"), "not a run's configuration"),
    ],
)
def test_damaged_files_are_named_in_two_lines(
    whole: Path, capsys: pytest.CaptureFixture[str], spoil: object, said: str
) -> None:
    assert callable(spoil)
    spoil(whole)
    assert run_command(["report", str(whole)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert said in lines[0]


def test_a_place_that_cannot_be_written(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["report", str(whole), "--output", str(whole / "none" / "x.html")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_a_caveat_stands_beside_the_promise(tmp_path: Path) -> None:
    shaky = trial_to_record(trial(certificate=certificate(caveat="the run was stopped")))
    evidence = read_evidence(run_dir(tmp_path / "run", recommendation(winner=shaky)))
    assert "Not a firm promise yet: the run was stopped." in markdown(evidence)
    assert "Not a firm promise yet: the run was stopped." in Page(html_page(evidence)).text


def test_accuracy_and_gpus_are_shown_where_they_were_measured(tmp_path: Path) -> None:
    output = OutputAccuracyRecord(
        output="y", batch_size=1, passed=True, sqnr_db=41.5, exact=False, cosine=0.99999,
        max_relative_error=0.1, top1_agreement=0.995, top1_lower_bound=0.98, non_finite=0,
    )  # fmt: skip
    judged = AccuracyRecord(
        precision="fp16", runner="onnxruntime-cpu", level="strict", passed=True, reason="", first_node=None,
        inputs=256, input_source="synthetic", note="", outputs=(output,),
    )  # fmt: skip
    gpu = GpuRecord(utilization=0.75, memory_used_bytes=2**31, power_w=151.0, energy_per_1000_inferences_j=None)
    winner = trial_to_record(trial(measurement=measurement(gpu=gpu)))
    found = recommendation(winner=winner, accuracy=(judged,))
    text = markdown(read_evidence(run_dir(tmp_path / "run", found)))
    assert "| fp16 | y, batch 1 | passed | 41.5 | 0.999990 | 99.50 % |" in text
    assert "| GPUs meanwhile | 75 % busy, 151 W, 2.0 GiB | – |" in text


def test_energy_is_shown_where_it_was_measured(tmp_path: Path) -> None:
    found = recommendation()
    cost = found.cost.model_copy(update={"energy_kwh_per_million_inferences": 0.0123})
    text = markdown(read_evidence(run_dir(tmp_path / "run", recommendation(cost=cost))))
    assert "| energy per million, GPUs alone | 0.0123 kWh | – |" in text


def test_the_frontier_and_every_limit_stand_in_the_page_and_in_markdown(tmp_path: Path) -> None:
    slo = Slo(limit_ms=50.0, also=(LimitRecord(quantile=0.5, limit_ms=10.0),), max_memory_bytes=2**33)
    found = recommendation(slo=slo, frontier=frontier_of([trial_to_record(trial(memory_bytes=2**30))]))
    evidence = read_evidence(run_dir(tmp_path / "run", found))
    for text in (html_page(evidence), markdown(evidence)):
        assert "p99 within 50 ms and p50 within 10 ms in 8 GiB" in text
        assert "Frontier of rate and latency" in text
        assert "server&#39;s memory" in text or "server's memory" in text
    assert "--p99 50ms --p50 10ms" in markdown(evidence)


def test_what_neighbours_took_stands_at_the_top_and_beside_each_trial(tmp_path: Path) -> None:
    busy = neighbours(34.0, of_s=120.0)
    disturbed = trial(neighbours=busy, certificate=certificate(neighbours=busy))
    found = recommendation(winner=trial_to_record(disturbed), neighbours=busy)
    evidence = read_evidence(run_dir(tmp_path / "run", found, trial(0), disturbed))
    for text in (html_page(evidence), markdown(evidence)):
        assert "Other processes took 0.9 cores for 34 of 120 s of load while this rate was certified" in text
        assert text.count("ther processes took") == 3  # at the top, in the comparison, beside the trial
