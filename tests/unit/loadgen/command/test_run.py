"""Unit: what a load test has measured outlives every bug in showing it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fake_triton import fake_triton

from loadgen.cli import run_command
from loadgen.command import live, run
from loadgen.command import measure as flow
from loadgen.console import LiveDisplay
from loadgen.records.record import LoadTestRecord
from loadgen.reports import write

pytestmark = pytest.mark.slow


def fails(*_: object, **__: object) -> None:
    raise ZeroDivisionError("a bug in a picture")


FAULTS = {
    "the answer on the terminal": (run, "answer_view"),
    "the figures meanwhile": (live, "so_far"),
    "the end of the display": (LiveDisplay, "__exit__"),
    "the page": (write, "html_page"),
    "the page for pipelines": (write, "junit_xml"),
    "the curve of latencies": (flow, "curve_of"),
    "the curve over time": (flow, "timeline_of"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bug_in_showing_it_is_reported_and_costs_no_measurement(
    fault: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*FAULTS[fault], fails)
    duration = "2s" if fault == "the figures meanwhile" else "300ms"  # they come every half second
    with fake_triton("--delay-ms", "1") as server:
        code = run_command(
            f"{server.url} --model delay --rate 100 --duration {duration} --warmup 0s --p50 1s "
            f"--output {tmp_path}/r.json --html {tmp_path}/r.html --junit {tmp_path}/r.xml".split()
        )
    out, err = capfd.readouterr()
    record = LoadTestRecord.model_validate_json((tmp_path / "r.json").read_bytes())
    assert record.measurement.requests > 10
    assert "a bug in a picture" in (err + " ".join(record.notes))
    if "curve" in fault:
        assert code == record.exit_code
    else:
        assert code == 1
        assert "bug in tritune" in err
    if fault == "the answer on the terminal":
        assert json.loads(out) == json.loads((tmp_path / "r.json").read_text())
    missing = {"the page": "r.html", "the page for pipelines": "r.xml"}.get(fault)
    written = {name for name in ("r.html", "r.xml") if (tmp_path / name).exists()}
    assert written == {"r.html", "r.xml"} - {missing}


def test_a_full_disk_under_stderr_and_stdout_costs_no_measurement(tmp_path: Path) -> None:
    program = [sys.executable, "-c", "from loadgen.cli import main; main()"]
    with fake_triton("--delay-ms", "1") as server, Path("/dev/full").open("w") as full:
        order = f"{server.url} --model delay --rate 100 --duration 300ms --warmup 0s --output {tmp_path}/r.json"
        done = subprocess.run([*program, *order.split()], stdout=full, stderr=full, check=False)
    record = LoadTestRecord.model_validate_json((tmp_path / "r.json").read_bytes())
    assert record.measurement.requests > 10
    assert done.returncode == 3


def test_quiet_and_verbose(capfd: pytest.CaptureFixture[str]) -> None:
    said = {}
    with fake_triton("--delay-ms", "1") as server:
        common = f"{server.url} --model delay --rate 100 --duration 3s --warmup 0s".split()
        for flag in ("-q", "-v"):
            run_command([*common, flag])
            said[flag] = capfd.readouterr()
    assert said["-q"].err == ""
    assert "requests/s" in said["-q"].out
    assert "in flight" in said["-v"].err
    assert run_command([*common, "-q", "-v"]) == 2


@pytest.mark.parametrize("module", ["loadgen.cli", "optimizer.cli"])
def test_the_modules_of_the_commands_are_commands(module: str) -> None:
    done = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("tritune ")
