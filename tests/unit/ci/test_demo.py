"""When CI calls the demo good: by its rate next to a closed loop's, and by what was measured while it failed."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from disturbance import Disturbance
from recommendations import recommendation, trial

from loadgen.measurement.cpu_contention import CpuContention
from loadgen.records.record import TimelineRecord
from optimizer.cli import app

sys.path.append(str(Path(__file__).parents[3] / ".ci"))

from demo import (
    EXITS,
    LEAST_SHARE,
    NOT_RUN,
    Try,
    decided,
    disturbance_in,
    exit_code_of,
    load_seconds,
    slowest_per_s,
)

RECORDED = Path(__file__).parents[3] / "tests" / "data" / "version_1_run_early"
QUIET = Disturbance(watched_s=300.0, stolen_s=0.0, others_s=0.0)
GOOD = Try(exit_code=0, certified_per_s=931.0, closed_loop_per_s=1300.0, bundle_codes=(0, 0), load_s=260.0)
FOUND_LITTLE = replace(GOOD, certified_per_s=93.0)
CROWDED = Try(
    exit_code=0,
    certified_per_s=96.6,
    closed_loop_per_s=523.8,
    load_s=206.0,
    disturbed="other processes took 1.3 cores for 206 of 206 s of load",
)
"""As it was on two processors that eight people shared."""

FOUND_NOTHING = Try(exit_code=99, load_s=200.0)
STALLS = "a processor stood still for 9.0 of 300 s"


def disturbed(one: Try) -> Try:
    return replace(one, disturbed=STALLS)


@pytest.mark.parametrize(
    ("tries", "decision"),
    [
        ([GOOD], "green"),
        ([disturbed(GOOD)], "green"),
        ([FOUND_LITTLE], "again"),
        ([FOUND_NOTHING], "again"),
        ([replace(GOOD, bundle_codes=None)], "again"),
        ([replace(GOOD, bundle_codes=(0, 99))], "again"),
        ([replace(GOOD, bundle_codes=(98, 0)), GOOD], "green"),
        ([disturbed(replace(GOOD, bundle_codes=(0, 3)))], "red"),
        ([FOUND_NOTHING, GOOD], "green"),
        ([FOUND_LITTLE, FOUND_LITTLE], "red"),
        ([FOUND_NOTHING, FOUND_NOTHING], "red"),
        ([disturbed(FOUND_NOTHING), FOUND_LITTLE], "red"),
        ([FOUND_NOTHING, disturbed(FOUND_LITTLE)], "red"),
        ([disturbed(FOUND_NOTHING), disturbed(FOUND_LITTLE)], "green"),
        ([CROWDED], "again"),
        ([CROWDED, CROWDED], "green"),
        ([CROWDED, FOUND_NOTHING], "red"),
    ],
)
def test_two_failures_are_red_unless_both_were_disturbed(tries: list[Try], decision: str) -> None:
    assert decided(tries) == decision


@pytest.mark.parametrize("code", [1, 2, 3, 97, 130, 137, NOT_RUN])
def test_any_other_exit_code_is_red_at_once_on_any_machine(code: int) -> None:
    assert decided([disturbed(Try(exit_code=code))]) == "red"
    assert decided([FOUND_NOTHING, disturbed(Try(exit_code=code))]) == "red"


def test_the_rate_is_compared_with_the_closed_loop() -> None:
    least = replace(GOOD, certified_per_s=LEAST_SHARE * 1300.0)
    assert least.fault is None
    assert "of the 1300/s of a closed loop" in str(replace(least, certified_per_s=least.certified_per_s - 1).fault)
    assert replace(GOOD, closed_loop_per_s=None).fault is not None
    assert replace(GOOD, certified_per_s=None).fault is not None
    assert replace(GOOD, certified_per_s=float("nan")).fault is not None


def test_load_seconds_and_exit_code_are_told() -> None:
    assert GOOD.text.startswith("certified 931/s, a closed loop does 1300/s at its slowest; 260 s of load")
    assert FOUND_NOTHING.text.startswith(f"exit code 99: {EXITS[99]}; 200 s of load")
    assert disturbed(FOUND_NOTHING).text.endswith(STALLS)


def test_every_exit_code_of_the_command_is_known() -> None:
    told = str(app.registered_callback.callback.__doc__)
    codes = re.findall(r"^- (\d+): ", told, re.MULTILINE)
    assert {int(code) for code in codes} == set(EXITS)


@pytest.mark.parametrize(
    ("make_code", "output", "code"),
    [
        (0, "", 0),
        (2, "make: *** [Makefile:21: demo] Error 99\n", 99),
        (2, "make[1]: *** [Makefile:21: demo] Error 3\nmake: *** [Makefile:2: demo] Error 3\n", 3),
        (2, "make: *** [Makefile:16: .venv/.installed] Error 1\n", NOT_RUN),
        (-2, "", NOT_RUN),
    ],
)
def test_the_exit_code_is_read_from_what_make_prints(make_code: int, output: str, code: int) -> None:
    assert exit_code_of(make_code, output) == code


def test_a_run_on_a_quiet_machine_was_not_disturbed() -> None:
    assert disturbance_in(RECORDED, QUIET) is None
    assert load_seconds(RECORDED) == pytest.approx(259.5, abs=0.1)


def test_stalls_count_from_half_a_percent_on() -> None:
    brief = replace(QUIET, stalls_ns=((0, 1_400_000_000),))
    long = replace(QUIET, stalls_ns=((0, 1_600_000_000),))
    many_short = replace(QUIET, stalls_ns=((0, 10_000_000),) * 1000)
    assert disturbance_in(RECORDED, brief) is None
    assert disturbance_in(RECORDED, many_short) is None
    assert disturbance_in(RECORDED, long) == "a processor stood still for 1.6 of 300 s (1600 ms at the worst)"


def written(run: Path, contention: CpuContention, *, found: bool) -> Path:
    run.mkdir()
    measured = trial(0).model_copy(update={"contention": contention, "load_s": 40.0})
    (run / "trials.jsonl").write_text(measured.model_dump_json() + "\n")
    if found:
        told = recommendation().model_copy(update={"contention": contention})
        (run / "recommendation.json").write_text(told.model_dump_json())
    return run


@pytest.mark.parametrize("found", [True, False])
def test_contention_is_read_from_the_runs_own_records(tmp_path: Path, found: bool) -> None:
    some = CpuContention(watched_s=40.0, disturbed_s=20.0, others_cpu_s=15.0, stolen_cpu_s=0.0)
    little = CpuContention(watched_s=40.0, disturbed_s=1.0, others_cpu_s=0.8, stolen_cpu_s=0.0)
    said = disturbance_in(written(tmp_path / "some", some, found=found), QUIET)
    assert said == "other processes took 0.8 cores for 20 of 40 s of load"
    assert disturbance_in(written(tmp_path / "little", little, found=found), QUIET) is None


@pytest.mark.parametrize(
    ("slowdowns", "said"),
    [
        ([1.0, 1.0, 1.6], "the machine's speed went up and down by 27 %"),  # ln: 0, 0, 0.47; less 0.04
        ([1.6, 1.6, 1.6], None),  # slow, and evenly so
        ([1.0, 1.6], None),  # two tell nothing
    ],
)
def test_a_speed_that_goes_up_and_down_is_a_reason(
    tmp_path: Path, slowdowns: list[float], said: str | None
) -> None:
    records = [trial(0).model_dump(mode="json") for _ in slowdowns]
    for record, slowdown in zip(records, slowdowns, strict=True):
        record["replay"] = {"slowdown": slowdown, "rate_per_s": 500.0, "error": 0.01}
    (tmp_path / "trials.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert disturbance_in(tmp_path, QUIET) == said


def test_a_closed_loop_counts_with_its_slowest_two_seconds() -> None:
    due = (700.0, 690.0, 400.0, 420.0, 650.0, 300.0, 700.0, 710.0)
    none = (None,) * len(due)
    timeline = TimelineRecord(
        bin_s=1.0, start_s=tuple(range(len(due))), due_per_s=due, failures=(0,) * len(due),
        p50_ms=none, p99_ms=none, max_ms=none,
    )  # fmt: skip
    assert slowest_per_s(timeline) == 410.0
    assert slowest_per_s(timeline.model_copy(update={"bin_s": 2.0})) == 300.0
    assert slowest_per_s(timeline.model_copy(update={"bin_s": 5.0})) == 300.0


def test_a_run_that_found_nothing_counts_the_load_of_its_trials(tmp_path: Path) -> None:
    quiet = CpuContention(watched_s=40.0, disturbed_s=0.0, others_cpu_s=0.0, stolen_cpu_s=0.0)
    assert load_seconds(written(tmp_path / "run", quiet, found=False)) == 40.0
    assert load_seconds(tmp_path) == 0.0
