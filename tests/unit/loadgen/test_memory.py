"""Ten million requests, kept one by one, are judged in the memory that was promised for them."""

import subprocess
import sys

CODE = """
import re
from pathlib import Path
import numpy as np
from loadgen.judge import judge
from loadgen.measurement import ClientUse
from loadgen.order import LatencyLimit, Limits
from loadgen.plan import LoadPlan
from loadgen.shared_log import own_table
from loadgen.summary import measurement_of

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
    assert (n, answer) == ("10000000", "kept")
    assert float(peak_mb) < 400
