"""Whatever a server does, a load test ends in time and in bounded memory, as a result or as two lines."""

import os
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from strange_answers import QUICK, SLOW
from strange_servers import Strange, serving

from loadgen.errors import LoadError
from loadgen.measurement.request_log import Measurement
from loadgen.measurement.result import measurement_of
from loadgen.measurement.server_stats import read_statistics, statistics_remarks, timings_between
from loadgen.records.record import LoadTestRecord
from loadgen.sending.prepared import PreparedTarget
from loadgen.sending.request_table import own_table
from loadgen.sending.send_loop import Shard
from loadgen.sending.worker import run_shard
from loadgen.spec.plan import LoadPlan, Payload
from loadgen.spec.target import Target
from loadgen.wire import questions
from loadgen.wire.poller import Poller

pytestmark = pytest.mark.long

MAX_BYTES = 64 << 20
ROOT = Path(__file__).parents[2]
LARGE = ("without end", "megabyte", "17 MiB", "16 MiB", "ten thousand", "4 GiB", "a flood", "100,000")
PLAN = LoadPlan(rate_per_s=60, duration_s=0.15, seed=1, timeout_s=0.3)


def measured(target: Target) -> Measurement:
    """What a load process and its parent do, in this process: questions, a first request, a load, figures."""
    poller = Poller()
    before = read_statistics(target)
    prepared = PreparedTarget(target, Payload(), poller, PLAN.timeout_s)
    try:
        prepared.connect(4)
        rows = round(PLAN.rate_per_s * PLAN.duration_s)
        table = own_table(rows)
        table.scheduled_ns[:] = (np.arange(rows) * 1e9 / PLAN.rate_per_s).astype(np.int64)
        share = Shard(
            part=0,
            parts=1,
            timeout_s=PLAN.timeout_s,
            rate_per_s=PLAN.rate_per_s,
            limit_ms=None,
            duration_s=PLAN.duration_s,
        )
        result = run_shard(share, table, prepared, poller, time.monotonic_ns(), lambda: False)
    finally:
        prepared.close()
        poller.close()
    after = read_statistics(target)
    remarks, server = statistics_remarks(before, after), timings_between(before, after)
    return measurement_of(table.finished(result.rows), PLAN, [result], server=server, remarks=remarks)


def of_all_kinds(strange: list[Strange]) -> list[object]:
    return [pytest.param(one, id=f"{one.scheme}, {one.name}") for one in strange]


@pytest.mark.parametrize("strange", of_all_kinds([*QUICK, *SLOW]))
def test_every_strange_server_ends_in_a_result_or_in_two_lines(
    strange: Strange, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "PATIENCE_S", 1.0)
    began = time.monotonic()
    with serving(strange) as url:
        try:
            seen = measured(Target(url=url, model_name="m"))
        except LoadError as error:
            refused, seen = str(error), None
    assert (
        time.monotonic() - began < 30
    )  # four questions, a first request and a load; much less on an idle machine
    if seen is None:
        assert len(refused.split("\n")) == 2, refused
        assert all(refused.split("\n"))
        assert len(refused) < 4000
        assert "the client" not in refused
        refused.encode()
        assert not strange.after
        return
    (seen.error_example or "").encode()
    if strange.name.startswith("infer"):
        assert sum(seen.errors.values()) >= seen.n - 1 - strange.after, "no strange answer is an inference"
        assert seen.error_example or "time-out" in seen.errors
    if strange.name.startswith("stats") and seen.server is None and "null" not in strange.name:
        assert seen.remarks


@pytest.mark.parametrize(
    "strange", of_all_kinds([one for one in QUICK if any(part in one.name for part in LARGE)])
)
def test_no_server_takes_more_than_64_mib(strange: Strange, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "PATIENCE_S", 1.0)
    with serving(strange) as url:
        tracemalloc.start()
        try:
            measured(Target(url=url, model_name="m"))
        except LoadError:
            pass
        finally:
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
    assert peak < MAX_BYTES


def loadtest(url: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from loadgen.cli import main; main()", url, "--model", "m"]
    return subprocess.run(
        [*command, "--rate", "50", "--duration", "500ms", "--warmup", "0s", "--timeout", "300ms", *options],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "200"},
        check=False,
    )


COMMANDS = {
    ("http", "metadata: JSON nested 200,000 deep"): 2,
    ("http", "metadata: a size of 1e12"): 2,
    ("http", "metadata: a rank of 33"): 2,
    ("http", "metadata: an input called [/nope]"): 0,
    ("http", "metadata: an input with half a character"): 2,
    ("http", "metadata: a body in drips"): 2,
    ("http", "infer, at first: html"): 2,
    ("http", "infer, later: html"): 99,
    ("http", "infer, later: nothing for numbers"): 99,
    ("http", "infer, later: half a character in an error"): 99,
    ("http", "infer, later: a chunk of size '-6'"): 99,
    ("http", "stats: nested 200,000 deep"): 0,
    ("http", "stats: counts in words"): 0,
    ("grpc", "infer, later: no message"): 99,
    ("grpc", "infer, later: a size that its bytes have not"): 99,
    ("grpc", "infer, later: an error with escapes"): 99,
    ("grpc", "metadata: a goodbye of three bytes"): 2,
}


@pytest.mark.parametrize(("which", "code"), COMMANDS.items(), ids=map(", ".join, COMMANDS))
def test_the_command_says_so_in_two_lines_or_in_a_result(
    which: tuple[str, str], code: int, tmp_path: Path
) -> None:
    (strange,) = (one for one in (*QUICK, *SLOW) if (one.scheme, one.name) == which)
    report = tmp_path / "r.json"
    with serving(strange) as url:
        done = loadtest(url, "--output", str(report))
    told = done.stdout + done.stderr
    assert "Traceback" not in told
    assert "bug" not in told
    assert "\x1b[2J" not in told
    if code == 2:
        assert done.returncode == 2, told
        assert not done.stdout
        *before, what, to_do = done.stderr.rstrip().split("\n")
        assert "error" not in " ".join(before)
        assert what.startswith("error: ")
        assert to_do.startswith("       ")
        return
    record = LoadTestRecord.model_validate_json(report.read_text())
    assert record.measurement is not None
    assert done.returncode in (code, 98), told  # 98: another process took the processor from the load
    assert len(record.measurement.errors) == (code == 99), told
    assert record.measurement.failures == (record.measurement.requests if code == 99 else 0), told
    if which[1].startswith("stats"):
        assert record.measurement.server is None
        assert any("server's own figures are left out" in note for note in record.notes)
