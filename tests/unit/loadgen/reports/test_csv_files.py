import csv
import io
import json
import subprocess
import sys

import numpy as np
import pytest
from load_records import measurement, record

from loadgen.measurement.request_log import RequestLog
from loadgen.reports.write import failures_csv, history_csv, stats_csv

LOCUST_COLUMNS = """
import json
from locust.env import Environment
from locust.stats import PERCENTILES_TO_REPORT, StatsCSV, StatsCSVFileWriter
import tempfile
files = StatsCSVFileWriter(Environment(), PERCENTILES_TO_REPORT, tempfile.mkdtemp() + "/x")
print(json.dumps([files.requests_csv_columns, files.stats_history_csv_columns, files.failures_columns]))
files.close_files()
"""


@pytest.fixture(scope="module")
def log() -> RequestLog:
    """3,000 requests in 10 s; every hundredth timed out, every 150th met a 503."""
    rng = np.random.default_rng(0)
    scheduled = np.sort(rng.integers(0, 10_000_000_000, 3000))
    done = scheduled + (rng.lognormal(3, 0.5, 3000) * 1e6).astype(np.int64)
    outcome = np.zeros(3000, np.uint8)
    outcome[::100] = 1
    outcome[1::150] = 103
    return RequestLog(scheduled_ns=scheduled, sent_ns=scheduled, done_ns=done, outcome=outcome)  # type: ignore[arg-type]


SHOWN = record(measurement=measurement(requests=3000, duration_s=10.0, bytes_received=300_000))


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_the_columns_are_those_that_locust_writes(log: RequestLog) -> None:
    printed = subprocess.run(
        [sys.executable, "-c", LOCUST_COLUMNS], check=True, capture_output=True, text=True
    ).stdout
    ours = [next(csv.reader(io.StringIO(table(SHOWN, log)))) for table in (stats_csv, history_csv, failures_csv)]
    theirs = [[name.strip() for name in names] for names in json.loads(printed)]
    assert [[name.strip() for name in names] for names in ours] == theirs


def test_the_totals_are_exact(log: RequestLog) -> None:
    model, total = rows(stats_csv(SHOWN, log))
    latency = np.sort(log.latency_charged_ns(10_000_000_000)) / 1e6
    assert model["Name"] == "resnet<50>"
    assert total["Name"] == "Aggregated"
    assert (int(total["Request Count"]), int(total["Failure Count"])) == (3000, 50)
    assert float(total["50%"]) == pytest.approx(latency[1499], abs=1e-4)
    assert float(total["99%"]) == pytest.approx(latency[2969], abs=1e-4)
    assert float(total["100%"]) == pytest.approx(latency[-1], abs=1e-4)
    assert float(total["Requests/s"]) == 300.0


def test_the_history_counts_up_to_the_same_totals(log: RequestLog) -> None:
    lines = rows(history_csv(SHOWN, log))
    assert len(lines) == 10
    assert sum(int(line["Requests/s"]) for line in lines) == 3000
    assert int(lines[-1]["Total Request Count"]) == 3000
    assert int(lines[-1]["Total Failure Count"]) == 50
    final = rows(stats_csv(SHOWN, log))[1]
    for quantile in ("50%", "95%", "99%", "100%"):
        assert float(lines[-1][quantile]) == pytest.approx(float(final[quantile]), rel=0.003)


def test_each_kind_of_failure_has_a_line(log: RequestLog) -> None:
    assert {line["Error"]: int(line["Occurrences"]) for line in rows(failures_csv(SHOWN, log))} == {
        "time-out": 30,
        "http 503": 20,
    }
