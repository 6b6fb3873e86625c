"""A run is judged in the memory that it was promised to take, and one that does not fit is refused before it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from loadgen.errors import PlanError
from loadgen.memory import memory_bytes
from loadgen.sending import request_table
from loadgen.sending.request_table import BYTES_PER_REQUEST, check_memory
from loadgen.spec.plan import Arrivals, LoadPlan

CODE = """
import re
from pathlib import Path
import numpy as np
from load_records import record, shard_result
from loadgen.measurement.result import measurement_of
from loadgen.records.curves import curve_of, timeline_of
from loadgen.reports.write import failures_csv, history_csv, stats_csv
from loadgen.sending.request_table import planned_table
from loadgen.spec.limits import LatencyLimit, Limits
from loadgen.spec.plan import LoadPlan
from loadgen.statistics.checks import judge, p99_bounds

def peak_bytes():  # of this program alone: ru_maxrss would begin with what the process that started it had
    return 1024 * int(re.findall(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[0])

plan = LoadPlan(rate_per_s=10_000, duration_s=400, seed=1, max_in_flight=10_000)
limits = Limits(latency=(LatencyLimit(quantile=0.99, limit_ms=50),), max_error_ratio=0.01)
draw = np.random.default_rng(1)
some_ns, failed = draw.exponential(5e6, 100_000).astype(np.int64), draw.random(100_000) < 0.002
before = peak_bytes()
table = planned_table(plan)
for start in range(0, table.rows, 100_000):
    rows = slice(start, min(start + 100_000, table.rows))
    n = rows.stop - start
    table.sent_ns[rows] = table.scheduled_ns[rows] + 1000
    table.done_ns[rows] = table.sent_ns[rows] + some_ns[:n]
    table.outcome[rows] = failed[:n]
log = table.finished(table.rows)
measured = measurement_of(log, plan, [shard_result()])
checks = judge(log, limits)
p99_bounds(log, 0.95)
curve_of(log, 10**10), timeline_of(log, 10**10, 400)
for text in (stats_csv, history_csv, failures_csv):
    text(record(), log)
print(*(check.answer for check in checks), (peak_bytes() - before) / measured.n)
"""


@pytest.mark.slow
def test_a_run_takes_the_memory_per_request_that_it_is_checked_for() -> None:
    support = Path(__file__).parents[2] / "support"
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(support)}
    )
    latency, errors, bytes_per_request = done.stdout.split()
    assert (latency, errors) == ("met", "met")
    assert float(bytes_per_request) < 1.1 * BYTES_PER_REQUEST  # a tenth for the program itself


@pytest.mark.parametrize(
    ("arrivals", "requests"),
    [
        (Arrivals(), 1000),
        (Arrivals(kind="ramp", levels=(0.0, 4.0)), 2000),
        (Arrivals(kind="spike", levels=(11.0,), start=0.5, end=0.6), 2000),
    ],
)
def test_a_run_fits_up_to_the_last_byte(
    monkeypatch: pytest.MonkeyPatch, arrivals: Arrivals, requests: int
) -> None:
    plan = LoadPlan(rate_per_s=100.0, duration_s=10.0, seed=1, arrivals=arrivals)
    monkeypatch.setattr(request_table, "memory_bytes", lambda kind: requests * BYTES_PER_REQUEST)
    check_memory(plan)
    monkeypatch.setattr(request_table, "memory_bytes", lambda kind: requests * BYTES_PER_REQUEST // 2)
    with pytest.raises(PlanError, match=f"^{requests:,} requests take .* GB of memory, .*\nUse .* at most 5 s"):
        check_memory(plan)
    check_memory(plan, parts=2)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_plan_that_is_let_through_has_memory_for_its_table(
    monkeypatch: pytest.MonkeyPatch, streamed: bool
) -> None:
    plan = LoadPlan(rate_per_s=1000.0, duration_s=1.0, seed=1, arrivals=Arrivals(kind="constant"))
    fd = request_table.create_table_fd(1000, streamed=streamed)
    size = os.fstat(fd).st_size
    os.close(fd)
    monkeypatch.setattr(request_table, "memory_bytes", lambda kind: size)
    with pytest.raises(PlanError, match=f"{size // 1000} bytes each"):
        check_memory(plan, streamed=streamed)
    monkeypatch.setattr(request_table, "memory_bytes", lambda kind: 2 * size)
    check_memory(plan, streamed=streamed)


def test_memory_that_is_left_is_less_than_all(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 100 kB\nMemFree: 10 kB\nMemAvailable: 40 kB\n")
    assert memory_bytes(tmp_path) == 100 * 1024
    assert memory_bytes(tmp_path, kind="MemAvailable") == 40 * 1024
