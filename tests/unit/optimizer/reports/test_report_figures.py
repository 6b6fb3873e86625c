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
from model_repo.repository.config_pbtxt import parse_config_pbtxt
from optimizer.config import OptimizeConfig
from optimizer.reports import plots, tables
from optimizer.reports.card import answer_card, config_lines
from optimizer.reports.evidence import Evidence, read_evidence
from optimizer.reports.report import commands, html_page, report_of
from optimizer.reports.terminal import explanation_view, rate_view
from optimizer.reports.trial_tables import LONGEST_REASON, reason_of, short_and_rest
from optimizer.run.progress import trial_line
from optimizer.run_file import save_config
from search.answer.explain import Explanation, explain_rate, rate_steps
from search.records.certificate import SlownessRecord, SlowPhasesRecord
from search.records.confirmations import CONFIRMATIONS_FILE, ConfirmationRecord, believed
from search.records.recommendation import RecommendationRecord
from search.records.run_files import PredictedRecord, write_predictions
from search.records.slo import WorkloadRecord
from search.records.trial import LoadRunRecord
from search.trials.trial import config_to_record


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
    assert len({bar["role"] for bar in report.plots["stages"]["bars"]}) == roles
    stages = next(part.table for part in report.sections if part.plot and part.plot[0] == "stages")
    assert stages is not None
    assert len(stages.headings) == 1 + roles


def cell(cells: list[kit.Data], batch: int, instances: int) -> tuple[object, ...]:
    (found,) = (one for one in cells if (one["batch"], one["instances"]) == (batch, instances))
    return found["rate"], found["how"], found["best"]


def predicted(rate_per_s: float, **knobs: Any) -> PredictedRecord:
    return PredictedRecord(config=config_to_record(config(**knobs)), rate_per_s=rate_per_s)


def test_each_batch_size_and_instance_count_shows_its_best_and_whether_that_was_measured(tmp_path: Path) -> None:
    """A prediction stands for a cell only if nothing was measured there, or what was is much slower."""
    tried = [
        trial(number, certificate=None, rate_at_limit_per_s=rate, state=state, config=config(**knobs))
        for number, (rate, state, knobs) in enumerate(
            (
                (1000.0, "complete", {"max_batch_size": 16}),
                (500.0, "complete", {"max_batch_size": 4, "intra_op_threads": 0}),
                (300.0, "pruned", {"max_batch_size": 2}),
                (0.0, "infeasible", {"max_batch_size": 1}),
                (None, "failed", {"max_batch_size": 32}),
                (9000.0, "complete", {"intra_op_threads": 0}),  # where the recommended one is
            ),
            start=10,
        )
    ]
    folder = run_dir(tmp_path / "run", recommendation(), *tried)
    write_predictions(
        folder,
        (
            predicted(1050.0, max_batch_size=16, max_queue_delay_us=500),
            predicted(2000.0, max_batch_size=16),  # that of trial 0 before it was measured
            predicted(900.0, max_batch_size=4),
            predicted(0.0, instance_count=1),
        ),
    )
    shown = plots.cells(read_evidence(folder))
    assert cell(shown, 16, 2) == (1000.0, "measured", False)
    assert cell(shown, 4, 2) == (900.0, "predicted", False)
    assert cell(shown, 2, 2) == (300.0, "at most", False)
    assert cell(shown, 1, 2) == (0.0, "measured", False)
    assert cell(shown, 8, 1) == (0.0, "predicted", False)
    assert cell(shown, 8, 2) == (1050.0, "measured", True)
    assert all(one["batch"] != 32 for one in shown)
    table = tables.configurations(read_evidence(folder))
    assert table is not None
    assert [row[-1].text for row in table.rows] == [one["how"] for one in shown]


def test_a_capacity_is_never_below_a_rate_that_was_met(tmp_path: Path) -> None:
    met = LoadRunRecord(rate_per_s=1100.0, latency_ms=35.0, met=True, trusted=True)
    runs = (met, met.changed(rate_per_s=1300.0, met=False), met.changed(rate_per_s=1200.0, trusted=False))
    found = recommendation(winner=trial(load_runs=runs), baseline=None, gain=None)
    shown = plots.cells(read_evidence(run_dir(tmp_path / "run", found)))
    assert cell(shown, 8, 2) == (1100.0, "measured", True)


def test_predicted_curves_are_drawn_of_the_answer_and_the_default(tmp_path: Path) -> None:
    folder = run_dir(tmp_path / "run", found := recommendation())
    curve = ((100.0, 5.0), (1000.0, 40.0))
    assert found.baseline is not None
    configs = (found.winner.config, found.baseline.config, config_to_record(config(max_batch_size=64)))
    write_predictions(folder, (PredictedRecord(config=one, rate_per_s=1.0, curve=curve) for one in configs))
    drawn = plots.rates(read_evidence(folder))
    assert drawn is not None
    roles = ["recommended", "recommended", "Triton default", "Triton default"]
    assert [one["role"] for one in drawn[1]["curves"]] == roles
    assert [(one["rate"], one["ms"]) for one in drawn[1]["curves"][:2]] == list(curve)


def bars(found: RecommendationRecord) -> list[list[tuple[str, float | None]]]:
    card = answer_card(found)
    return [[(bar.text, bar.share) for bar in compared] for _, compared in card.compared]


def test_the_card_compares_rate_latency_and_cost() -> None:
    at_default = LoadRunRecord(rate_per_s=505.0, latency_ms=12.5, met=True, trusted=True)
    assert bars(recommendation(winner=trial(load_runs=(at_default,)))) == [
        [("1,000/s", 1.0), ("500/s", 0.5)],
        [("12.5 ms", 0.25), ("30.0 ms", 0.6)],  # both near 500/s, of a limit of 50 ms
        [("$0.139", 0.5), ("$0.278", 1.0)],
    ]
    assert bars(recommendation())[1] == [("30.0 ms at 1,000/s", 0.6), ("30.0 ms at 500/s", 0.6)]


def test_what_was_not_certified_is_drawn_by_its_estimate() -> None:
    default = trial(0, config=config(max_batch_size=4), certificate=None, rate_at_limit_per_s=400.0)
    rates, latencies, costs = bars(recommendation(baseline=default, gain=None))
    assert (rates[1][1], latencies[1][1], costs[1][1]) == (0.4, None, 1.0)
    assert costs[1][0].startswith("about $")
    (_, (winner, other)), *_ = answer_card(recommendation(baseline=default, gain=None)).compared
    assert (winner.style, other.style) == ("winner", "baseline estimated")


@pytest.mark.parametrize(
    ("knobs", "on_gpu", "lines"),
    [
        (
            {"dynamic_batching": True, "max_queue_delay_us": 500, "preferred_batch_sizes": (4, 8)},
            False,
            {
                "max_batch_size: 8",
                "instance_group [ { count: 2 kind: KIND_CPU } ]",
                "preferred_batch_size: 4 preferred_batch_size: 8 max_queue_delay_microseconds: 500",
                'key: "intra_op_thread_count"',
            },
        ),
        ({"cuda_graph_batch_sizes": (1, 8), "intra_op_threads": 0}, True, {"KIND_GPU", 'key: "cuda_graphs"'}),
    ],
)
def test_the_lines_to_set_are_a_configuration_that_triton_reads(
    knobs: dict[str, Any], on_gpu: bool, lines: set[str]
) -> None:
    record = config_to_record(config(**knobs))
    text = config_lines(record, on_gpu=on_gpu)
    assert all(line in text for line in lines)
    message = parse_config_pbtxt(text)
    assert message.max_batch_size == record.max_batch_size
    assert [group.count for group in message.instance_group] == [record.instance_count]
    assert message.HasField("dynamic_batching") == record.dynamic_batching
    assert list(message.dynamic_batching.preferred_batch_size) == list(record.preferred_batch_sizes)
    assert message.dynamic_batching.max_queue_delay_microseconds == record.max_queue_delay_us


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
    part = next(part for part in report_of(nothing).sections if part.title == "What every load run decided")
    rows = [row for row in texts(part.table) if row[1].startswith("confirm")]
    seen = ("159 of 15,201", "overloaded: 9,000 of 15,201", CHANGED, "not trusted: requests left late")
    assert [words in row[4] for words, row in zip(seen, rows, strict=True)] == [True] * len(seen)
    drawn = json.loads(Page(html_page(nothing)).scripts[0])["rates"]
    assert [one["decided"] for one in drawn["runs"]] == ["inconclusive", "violated", "inconclusive"]


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


def test_load_runs_of_earlier_versions_are_in_the_table_alone(tmp_path: Path) -> None:
    drawn = certainty(tmp_path / "run", [LOAD_RUN, LOAD_RUN.changed(began_unix_s=1000.0)], confirmation(trial=1))
    assert [run["from"] for run in drawn["runs"]] == [0.0]
    sections = report_of(read_evidence(tmp_path / "run")).sections
    part = next(part for part in sections if part.title == "How the rate was found")
    assert len(texts(part.table)) == 3


def test_a_change_is_said_in_the_same_words_everywhere() -> None:
    run = LoadRunRecord(rate_per_s=790.0, latency_ms=35.0, met=False, trusted=True, violations=130, change=CHANGED)
    changed = trial(load_runs=(run, run.changed(change=None)))
    steps = rate_steps([changed], [confirmation(change=CHANGED)])
    assert [CHANGED in one.answer for one in steps] == [True, False, True]
    assert reason_of(changed) == f"the capacity was found; at 790/s {CHANGED}"
    assert f"at 790/s {CHANGED}" in trial_line(changed, is_best=False)
    explained = Explanation(
        trial=changed, role=None, why=(), predicted=(), seen=(), ended="",
        steps=steps,
    )  # fmt: skip
    console = SafeConsole(width=400, force_terminal=False, file=None)
    with console.capture() as capture:
        console.print(explanation_view(explained))
    assert capture.get().count(CHANGED) == 2


def test_load_runs_stand_in_the_order_in_which_they_began() -> None:
    begun = trial(1, load_runs=(LOAD_RUN.changed(began_unix_s=30.0),))
    steps = rate_steps([begun], [confirmation(trial=1, began_unix_s=at_s) for at_s in (10.0, 50.0)])
    assert [(one.step, one.began_unix_s) for one in steps] == [
        ("confirmation", 10.0), ("trial", 30.0), ("confirmation", 50.0),
    ]  # fmt: skip
    assert [one.began_unix_s for one in rate_steps([begun], [confirmation(trial=1)])] == [30.0, None]


def test_how_slow_the_machine_was_and_what_was_believed_is_explained_in_the_same_numbers(tmp_path: Path) -> None:
    machine = SlownessRecord(share=0.124, slowdown=1.63, seen_s=60.4)
    slow = SlowPhasesRecord(**machine.model_dump(), usual_per_s=703.0)
    folder = run_dir(
        tmp_path / "run", recommendation(winner=trial(certificate=certificate(600.0, slow_phases=slow)))
    )
    refuted = confirmation(trial=3, answer="violated", believed=believed(900.0, 0.1, machine=machine))
    steady = believed(950.0, 0.1, machine=SlownessRecord(share=0.0, slowdown=1.0, seen_s=20.0))
    lines = [confirmation(trial=3, believed=one) for one in (None, believed(950.0, 0.1), steady)]
    (folder / CONFIRMATIONS_FILE).write_text("".join(f"{one.model_dump_json()}\n" for one in (*lines, refuted)))
    console = SafeConsole(width=200, force_terminal=False, file=None)
    with console.capture() as capture:
        console.print(rate_view(explain_rate(folder)))
    shown = capture.get()
    assert "The machine was 1.6 times slower for 12 % of the load." in shown
    assert "trial 3 was believed to carry 900 (763.4 to 1,060) requests/s at the usual speed." in shown
    assert shown.count("900 (763.4 to 1,060)") == 2, "as in the table's last row of the trial"
    assert "carries about 703" not in shown, "that rate was violated"
    assert shown.count("slow for") == 2
    assert "slow for 0 % of 20 s " in shown
    assert "slow for 12 % of 60 s, 1.6 times" in shown


def test_the_answer_of_a_load_run_that_was_not_trusted_is_why() -> None:
    run = LoadRunRecord(rate_per_s=790.0, latency_ms=35.0, met=True, trusted=False, problems=("late", "stalled"))
    silent = run.model_copy(update={"problems": ()})
    steps = rate_steps([trial(load_runs=(run, silent))], [])
    assert [one.decided for one in steps] == ["not trusted"] * 2
    assert [all(problem in one.answer for problem in run.problems) for one in steps] == [True, False]


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
