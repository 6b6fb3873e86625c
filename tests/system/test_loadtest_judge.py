"""`loadtest --judge mlperf` against a server of a few lines: verdicts, files, errors, and that nothing hangs."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from fake_grpc import fake_grpc
from fake_triton import fake_triton
from loadgen_rule import least_within
from waiting import wait_until

from loadgen.judges.mlperf import FILES
from loadgen.records.record import NOT_VERIFIED, LoadTestRecord

pytestmark = pytest.mark.system

COMMAND = [sys.executable, "-c", "from loadgen.cli import main; main()"]
LOAD = ("--judge", "mlperf", "--warmup", "0s", "--max-send-lag", "30s", "--keep-log", "log", "--yes")
SHORT = ("--rate", "400", "--duration", "2s")


def loadtest(folder: Path, url: str, *options: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, url, "--model", "delay", *LOAD, *options]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=False, cwd=folder, **settings
    )


def assert_as_the_rule_says(record: LoadTestRecord) -> None:
    """LoadGen's verdict follows from its own figures by the rule as we have written it anew."""
    judge = record.judge
    assert judge is not None
    assert judge.performance_constraints_met == (judge.latency_ms <= judge.limit_ms)
    enough = judge.queries >= judge.over_limit + least_within(judge.over_limit, judge.quantile)
    assert judge.early_stopping_met == enough


@pytest.mark.parametrize("protocol", ["http", pytest.param("https", marks=pytest.mark.long)])
def test_a_limit_that_is_met_is_valid_and_its_files_stay(protocol: str, tmp_path: Path) -> None:
    secure = protocol == "https"
    options = (*SHORT, "--p99", "20s", "--json", *(["--insecure"] if secure else []))
    with fake_triton("--delay-ms", "2", *(["--tls"] if secure else []), scheme=protocol) as server:
        done = loadtest(tmp_path, server.url, *options)
        answered = len(server.kept(10**6)[0]) - 1  # the first was the trial request
    assert done.returncode == 0, done.stderr
    record = LoadTestRecord.model_validate_json(done.stdout)
    assert record.exit_code == 0
    assert record.judge is not None
    assert record.measurement is not None
    assert record.judge.verdict == "VALID"
    assert record.judge.remark == NOT_VERIFIED
    assert record.judge.queries == record.measurement.requests == answered
    assert_as_the_rule_says(record)
    # It counts from the same time as we do, and ends when it is told, a little after the kernel had the response.
    assert record.measurement.latency_p99_ms is not None
    assert record.judge.latency_ms > record.measurement.latency_p99_ms
    assert set(FILES) <= {path.name for path in (tmp_path / "log").iterdir()}
    assert "Result is : VALID" in (tmp_path / "log" / FILES[0]).read_text()


@pytest.mark.long
def test_grpc_is_sent_the_same_way(tmp_path: Path) -> None:
    with fake_grpc("--delay-ms", "2") as url:
        done = loadtest(tmp_path, url, "--rate", "200", "--duration", "4s", "--p99", "20s", "--json")
    assert done.returncode == 0, done.stderr
    record = LoadTestRecord.model_validate_json(done.stdout)
    assert record.judge is not None
    assert record.measurement is not None
    assert record.judge.queries == record.measurement.requests
    assert record.measurement.failures == 0


def test_a_limit_that_is_violated_is_invalid_on_every_report(tmp_path: Path) -> None:
    reports = ("--html", "r.html", "--junit", "r.xml", "--output", "r.json")
    with fake_triton("--delay-ms", "120") as server:
        done = loadtest(tmp_path, server.url, *SHORT, "--p99", "100ms", *reports)
    assert done.returncode == 99, done.stderr
    assert "INVALID" in done.stdout
    assert NOT_VERIFIED in done.stdout
    assert all(NOT_VERIFIED in (tmp_path / name).read_text() for name in ("r.html", "r.xml", "r.json"))
    assert '<testcase classname="loadtest.delay" name="MLPerf LoadGen"' in (tmp_path / "r.xml").read_text()
    assert_as_the_rule_says(LoadTestRecord.model_validate_json((tmp_path / "r.json").read_bytes()))


def test_too_few_queries_are_invalid_and_inconclusive(tmp_path: Path) -> None:
    with fake_triton("--delay-ms", "1") as server:
        done = loadtest(tmp_path, server.url, "--rate", "100", "--duration", "1s", "--p99", "20s", "--json")
    assert done.returncode == 96, done.stderr
    record = LoadTestRecord.model_validate_json(done.stdout)
    assert record.judge is not None
    assert record.judge.performance_constraints_met
    assert "more queries" in record.judge.early_stopping
    assert_as_the_rule_says(record)


@pytest.mark.long
@pytest.mark.parametrize("fault", ["error", "silent"])
def test_failed_requests_count_against_the_server(fault: str, tmp_path: Path) -> None:
    options = (*SHORT, "--p99", "200ms", "--timeout", "500ms", "--json")
    with fake_triton("--delay-ms", "1", "--fault", fault, "--good-first", "300") as server:
        done = loadtest(tmp_path, server.url, *options)
    assert done.returncode == 99, done.stderr
    record = LoadTestRecord.model_validate_json(done.stdout)
    assert record.judge is not None
    assert record.measurement is not None
    assert record.judge.over_limit >= record.measurement.failures > 100
    assert record.judge.latency_ms >= 500  # as long as we charge for a failure, though most came at once


@pytest.mark.long
def test_a_server_that_goes_away_during_the_test_does_not_stop_it(tmp_path: Path) -> None:
    with fake_triton("--delay-ms", "1") as server:
        command = [*COMMAND, server.url, "--model", "delay", *LOAD, "--rate", "200", "--duration", "4s"]
        with subprocess.Popen(
            [*command, "--p99", "200ms", "--timeout", "500ms", "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        ) as process:
            wait_until(lambda: len(server.document("/kept")["kept_ns"]) > 100)
            server.process.kill()
            out, err = process.communicate(timeout=240)
    assert process.returncode == 99, err
    record = LoadTestRecord.model_validate_json(out)
    assert record.judge is not None
    assert record.judge.over_limit > 100


@pytest.mark.long
def test_a_limit_under_a_millisecond_is_told_to_the_nanosecond(tmp_path: Path) -> None:
    with fake_triton("--delay-ms", "2") as server:
        done = loadtest(tmp_path, server.url, *SHORT, "--p99", "0.25ms")
    assert done.returncode == 99, done.stderr
    assert "target_latency (ns): 250000" in (tmp_path / "log" / FILES[0]).read_text()


def test_no_server_is_two_lines(tmp_path: Path) -> None:
    done = loadtest(tmp_path, "http://127.0.0.1:1", *SHORT, "--p99", "50ms")
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()[-2:]) == 2
    assert "127.0.0.1:1" in done.stderr
    assert not any((tmp_path / "log").iterdir())


@pytest.mark.long
def test_an_audit_config_in_the_current_folder_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "audit.config").write_text("*.*.mode = 1\n*.*.min_duration = 1\n")
    with fake_triton("--delay-ms", "1") as server:
        done = loadtest(tmp_path, server.url, *SHORT, "--p99", "20s")
    assert done.returncode == 0, done.stderr
    assert "audit" not in (tmp_path / "log" / FILES[1]).read_text().lower()


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_an_interrupt_ends_it_at_once_without_a_verdict(number: signal.Signals, tmp_path: Path) -> None:
    with fake_triton("--delay-ms", "1") as server:
        command = [*COMMAND, server.url, "--model", "delay", *LOAD, "--rate", "200", "--duration", "600s"]
        with subprocess.Popen(
            [*command, "--p99", "50ms"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        ) as process:
            wait_until(lambda: len(server.document("/kept")["kept_ns"]) > 100)
            children = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(number)
            out, err = process.communicate(timeout=240)
    assert process.returncode == 130
    assert "no verdict" in err
    assert out == ""
    assert not any((tmp_path / "log").iterdir())
    wait_until(lambda: not any(child.is_running() for child in children))


@pytest.mark.long
def test_its_process_dies_with_the_command(tmp_path: Path) -> None:
    with fake_triton("--delay-ms", "1") as server:
        command = [*COMMAND, server.url, "--model", "delay", *LOAD, "--rate", "200", "--duration", "600s"]
        with subprocess.Popen([*command, "--p99", "50ms"], stderr=subprocess.PIPE, cwd=tmp_path) as process:
            wait_until(lambda: len(server.document("/kept")["kept_ns"]) > 100)
            children = psutil.Process(process.pid).children(recursive=True)
            assert children
            process.kill()
    wait_until(lambda: not any(child.is_running() for child in children))
