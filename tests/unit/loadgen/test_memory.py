"""Runs are judged in the memory that was promised: ten million requests in it, and any number from a file."""

import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import re
from pathlib import Path
import numpy as np
from loadgen.statistics.checks import judge
from loadgen.measurement.request_log import ClientUse
from loadgen.spec.limits import LatencyLimit, Limits
from loadgen.spec.plan import LoadPlan
from loadgen.sending.request_table import own_table
from loadgen.measurement.result import measurement_of

rows, part = 10_000_000, 1_000_000
table, draw = own_table(rows), np.random.default_rng(1)
some_ns = draw.exponential(5e6, part).astype(np.int64)
for start in range(0, rows, part):
    due = table.scheduled_ns[start : start + part]
    due[:] = np.arange(start, start + part) * 100_000
    table.sent_ns[start : start + part] = due + 1000
    table.done_ns[start : start + part] = due + some_ns
log = table.finished(rows)
client = ClientUse(cpu_share=0.1, cpu_s=1.0, bytes_sent=1, bytes_received=1, connections_opened=0)
measured = measurement_of(log, LoadPlan(rate_per_s=10_000, duration_s=1000, seed=1), client=client)
(check,) = judge(log, Limits(latency=(LatencyLimit(quantile=0.99, limit_ms=50),)))
# Of this program alone: ru_maxrss would begin with what the process that started it had.
(peak_kb,) = re.findall(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())
print(measured.n, check.answer, int(peak_kb) / 1024)
"""


def test_ten_million_requests_take_less_than_400_mb() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    n, answer, peak_mb = done.stdout.split()
    assert (n, answer) == ("10000000", "met")
    assert float(peak_mb) < 400


FROM_A_FILE = """
import sys, tracemalloc
from pathlib import Path
import numpy as np
from load_records import record
from loadgen.measurement.request_log import ClientUse, RequestLog
from loadgen.measurement.result import measurement_of
from loadgen.measurement.row_file import RowFile
from loadgen.records.curves import curve_of, timeline_of
from loadgen.reports.csv_files import failures_csv, history_csv, stats_csv
from loadgen.spec.limits import LatencyLimit, Limits
from loadgen.spec.plan import LoadPlan
from loadgen.statistics.checks import judge, p99_bounds

folder, million = Path(sys.argv[1]), 1_000_000
limits = Limits(latency=(LatencyLimit(quantile=0.99, limit_ms=50),), max_error_ratio=0.01)
client = ClientUse(cpu_share=0.1, cpu_s=1.0, bytes_sent=1, bytes_received=1, connections_opened=0)
peaks_mb = []
tracemalloc.start()
draw = np.random.default_rng(1)
some_ns = draw.exponential(5e6, million).astype(np.int64)
outcome = (draw.random(million) < 0.002).astype(np.uint8)
with RowFile(folder) as rows:
    for number in range(4):
        due_ns = np.arange(number * million, (number + 1) * million) * 100_000
        rows.add(RequestLog(scheduled_ns=due_ns, sent_ns=due_ns + 1000, done_ns=due_ns + some_ns, outcome=outcome))
        if number not in (0, 3):
            continue
        log, duration_s = rows.log(), (number + 1) * 100
        plan = LoadPlan(rate_per_s=10_000, duration_s=duration_s, seed=1, max_in_flight=10_000)
        measured = measurement_of(log, plan, client=client)
        checks = judge(log, limits)
        p99_bounds(log, 0.95)
        curve_of(log, 10**10), timeline_of(log, 10**10, duration_s)
        for table in (stats_csv, history_csv, failures_csv):
            table(record(), log)
        peaks_mb.append(tracemalloc.get_traced_memory()[1] / 2**20)
        tracemalloc.reset_peak()
print(measured.n, *(check.answer for check in checks), *peaks_mb)
"""


@pytest.mark.slow
def test_a_run_of_which_the_times_lie_in_a_file_takes_no_more_memory_the_longer_it_is(tmp_path: Path) -> None:
    support = Path(__file__).parents[2] / "support"
    command = [sys.executable, "-c", FROM_A_FILE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONPATH": str(support)})
    n, latency, errors, at_one_mb, at_four_mb = done.stdout.split()
    assert (n, latency, errors) == ("4000000", "met", "met")
    assert float(at_four_mb) < float(at_one_mb) + 20  # three million more times in memory would take 24
