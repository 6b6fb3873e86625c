"""Tests of the output at the end of a run: the recommendation first, and only measured values."""

import math
from pathlib import Path

import pytest
from recommendations import certificate, config, contention, recommendation, run_dir, trial
from rich.text import Text

from loadgen.console import SafeConsole
from loadgen.measurement.cpu_contention import CpuContention
from loadgen.records.formats import format_rate
from loadgen.spec.limits import LatencyLimit
from optimizer.reports.report import markdown_report
from optimizer.reports.tables import comparison
from optimizer.reports.terminal import answer_view, recommendation_view
from optimizer.reports.text import lead
from optimizer.run.progress import Progress, certified_line, trial_line
from search.labels import rate_text
from search.records.recommendation import RecommendationRecord
from search.records.slo import ObjectiveRecord, Slo, WorkloadRecord
from search.records.trial import AnswersRecord
from search.trials import events


def shown(found: RecommendationRecord, width: int = 80) -> str:
    console = SafeConsole(width=width, force_terminal=False, record=True, file=None, quiet=False)
    with console.capture() as capture:
        console.print(recommendation_view(found))
    return capture.get()


@pytest.mark.parametrize(
    ("fixed_rows", "rows_per_request", "row_usd", "request_usd"), [(8, 1, 0.0174, 0.139), (1, 4, 0.139, 0.556)]
)
def test_rate_and_cost_are_per_row_and_per_request_if_these_differ(
    fixed_rows: int, rows_per_request: int, row_usd: float, request_usd: float
) -> None:
    found = recommendation(workload=WorkloadRecord(rows_per_request=rows_per_request))
    found = found.model_copy(update={"model": found.model.model_copy(update={"fixed_rows": fixed_rows})})
    text = " ".join(shown(found).split())
    assert f"{1000 * fixed_rows * rows_per_request:,} rows/s" in text
    assert f"${row_usd} per million rows, ${request_usd} per million requests" in text
    assert "per million rows" not in shown(recommendation())


def test_nothing_is_wider_than_the_terminal() -> None:
    assert max(len(line) for line in shown(recommendation()).splitlines()) <= 80


ROOT = Path(__file__).parents[4]
RECORDED = [
    *(ROOT / "tests" / "data" / "recorded_runs").glob("*/recommendation.json"),
    *(ROOT / "docs" / "benchmarks").glob("*/recommendation.json"),
]
DIRECTORY = Path("runs/ranking_mlp-20261128-193153")
MANY = [LatencyLimit(limit_ms=50.0), LatencyLimit(quantile=0.999, limit_ms=90.0)]
FULL = recommendation(
    slo=Slo(limits=tuple(MANY)),
    start=trial(1, certificate=certificate(250.0)),
    config_diff="".join(f"-{number}\n+{number}\n" for number in range(50)),
    workload=WorkloadRecord(rows_per_request=4, protocol="grpc"),
    status="provisional",
    exit_code=96,
    winner=trial(certificate=certificate(runs=1)),
    status_reason="1,000 requests/s met p99 within 50 ms once: there was no time to confirm it again.",
    advice="Give --time-budget 90s: two confirmations at about 1,000 requests/s take 20 s; before, 30 s.",
)


@pytest.mark.parametrize("path", [*RECORDED, None], ids=lambda path: path.parent.name if path else "everything")
def test_the_answer_is_on_one_screen_with_commands_that_can_be_copied(path: Path | None) -> None:
    found = FULL if path is None else RecommendationRecord.model_validate_json(path.read_bytes())
    console = SafeConsole(width=80, force_terminal=False, file=None)
    with console.capture() as capture:
        console.print(answer_view(found, DIRECTORY), crop=False)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    # A command is one line, which the terminal breaks: so it is whole if it is copied.
    assert sum(max(1, math.ceil(len(line) / 80)) for line in lines) <= 20
    wide = [line.split() for line in lines if len(line) > 80]
    assert all("optimize" in words or "loadtest" in words for words in wide)
    for limit in found.slo.limits if found.status == "certified" else ():
        assert sum(limit.option.replace("=", " ") in line for line in lines) == 1
    certified_twice = found.winner.certificate.confirmed_again
    assert any(f"optimize --resume {DIRECTORY}" in line for line in lines) != certified_twice
    assert f"exit code {found.exit_code}" in " ".join(lines)
    assert any(line.endswith(f" {DIRECTORY}/report.html") for line in lines)


@pytest.mark.parametrize(
    ("answers", "batches", "words"),
    [
        (AnswersRecord(compared=1234, differing=2, mean_batch_size=9.83), True, ("1,234 ", " 9.8 ", " 2.")),
        (AnswersRecord(unseen="no time was left"), True, ("no time was left.",)),
        (AnswersRecord(unseen="no time was left"), False, ()),
        (None, True, ()),
    ],
)
def test_how_answers_under_load_compared_is_said_in_terminal_and_report(
    answers: AnswersRecord | None, batches: bool, words: tuple[str, ...], tmp_path: Path
) -> None:
    found = recommendation(winner=trial(config=config(dynamic_batching=batches), answers=answers))
    page = markdown_report(run_dir(tmp_path, found))
    for text in (" ".join(shown(found).split()), page):
        assert all(one in text for one in words)
        assert ("under load" in text or "mix their rows" in text) == bool(words)


QUIET, BUSY = contention(1.0, of_s=60.0), contention(34.0, of_s=120.0)
BUSIEST = contention(70.0, of_s=120.0)


@pytest.mark.parametrize(
    ("winner", "run", "shown_one"),
    [(BUSY, BUSIEST, BUSY), (QUIET, BUSIEST, BUSIEST), (QUIET, QUIET, None), (None, None, None)],
)
def test_contention_is_shown_once_and_first_that_of_the_winner(
    winner: CpuContention | None, run: CpuContention | None, shown_one: CpuContention | None
) -> None:
    found = recommendation(winner=trial(certificate=certificate(contention=winner)), contention=run)
    text = " ".join(shown(found).split())
    count = {one: text.count(one.text[1:]) for one in (QUIET, BUSY, BUSIEST)}  # without the capital
    assert [one for one, times in count.items() if times] == ([] if shown_one is None else [shown_one])
    assert sum(count.values()) == (shown_one is not None)


def test_a_trial_and_a_certificate_that_were_disturbed_say_so_as_they_end() -> None:
    busy = trial(certificate=certificate(contention=BUSY), contention=BUSY)
    assert BUSY.text in trial_line(busy, is_best=True)
    assert BUSY.text in certified_line(
        events.ConfirmationEnded(trial=busy, rate_per_s=1.0, certificate=busy.certificate)
    )
    assert QUIET.text not in trial_line(busy.changed(contention=QUIET), is_best=True)


@pytest.mark.parametrize("most", [74, 94, 194])
def test_on_a_terminal_a_trial_is_one_line_and_keeps_what_matters_most(most: int) -> None:
    busy = trial(12, config=config(max_batch_size=128, instance_count=16), contention=BUSY)
    lost = busy.changed(state="failed", reason="no memory " * 20)
    certified = events.ConfirmationEnded(
        trial=busy, rate_per_s=1.0, certificate=certificate(123456.7, requests=1_234_567, contention=BUSY)
    )
    best, other, failed, confirmed = (
        Text.from_markup(markup).plain
        for markup in (
            trial_line(busy, is_best=True, most=most),
            trial_line(busy, is_best=False, most=most),
            trial_line(lost, is_best=False, most=most),
            certified_line(certified, most=most),
        )
    )
    assert all(len(line) <= most for line in (best, other, failed, confirmed))
    rate = rate_text(busy)
    assert all("trial 12" in line and "batch 128" in line for line in (best, other, failed))
    assert rate in best
    assert rate in other
    assert "best" in best
    assert "failed (no memory no memory" in failed
    assert f"{format_rate(123456.7)}/s for trial 12" in confirmed


def test_the_configuration_that_a_run_started_from_has_a_column() -> None:
    its = trial(1, config=config(instance_count=3), certificate=None, rate_at_limit_per_s=250.0)
    found = recommendation(winner=trial(rate_at_limit_per_s=1000.0), start=its)
    assert comparison(found).headings[-1] == "your config.pbtxt"
    assert "About 4 times your config.pbtxt's capacity" in " ".join(lead(found))
    latency = found.changed(objective=ObjectiveRecord(name="latency", rate_per_s=100.0))
    assert "your config.pbtxt" not in " ".join(lead(latency))
    without = comparison(recommendation(start=its, baseline=None))
    assert {len(cells) for cells in without.rows} == {3}
    best = recommendation(start=found.winner)
    assert "your config.pbtxt" not in comparison(best).headings
    assert "your own config.pbtxt" in " ".join(lead(best))


def test_the_time_that_is_left_has_sixty_seconds_to_a_minute() -> None:
    console = SafeConsole(width=200, force_terminal=True)
    now = Progress(console, budget_s=299.9)._drawn()  # which was drawn as 4:60
    with console.capture() as capture:
        console.print(now)
    assert "at most " in capture.get()
    assert ":60" not in capture.get()
