"""Rows that go to a file are the rows that went in, whoever reads them, and leave nothing behind."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from loadgen.errors import BadInput, EnvironmentFailed
from loadgen.measurement.request_log import RequestLog
from loadgen.measurement.row_file import RowFile, check_folder

NAMES = ("scheduled_ns", "sent_ns", "done_ns", "outcome")


def log_of(n: int, seed: int = 1) -> RequestLog:
    random = np.random.default_rng(seed)
    due_ns = np.cumsum(random.integers(0, 2_000_000, n))
    return RequestLog(
        scheduled_ns=due_ns,
        sent_ns=due_ns + random.integers(0, 1000, n),
        done_ns=due_ns + random.integers(1000, 50_000_000, n),
        outcome=random.integers(0, 4, n).astype(np.uint8),
    )


def assert_same(found: RequestLog, expected: RequestLog) -> None:
    for name in NAMES:
        assert getattr(found, name).dtype == getattr(expected, name).dtype
        assert getattr(found, name).tolist() == getattr(expected, name).tolist()


def added(rows: RowFile, log: RequestLog, parts: int) -> None:
    for part in np.array_split(np.arange(len(log)), parts):
        rows.add(log.rows(int(part[0]), int(part[-1]) + 1) if len(part) else log.rows(0, 0))


@pytest.mark.parametrize("parts", [1, 7, 200])
def test_what_is_added_is_read_back_at_any_time(tmp_path: Path, parts: int) -> None:
    log = log_of(100)
    with RowFile(tmp_path) as rows:
        assert len(rows.log()) == 0
        added(rows, log.rows(0, 60), parts)
        first = rows.log()
        added(rows, log.rows(60, 100), parts)
        whole = rows.log()
        assert list(tmp_path.iterdir()) == []
    assert_same(first, log.rows(0, 60))
    assert_same(whole, log)  # readable after the block


@pytest.mark.parametrize("part", [1, 7, 1000])
@pytest.mark.parametrize("late", [slice(0, 3), slice(50, 60), slice(10, 90, 9), slice(0, 80)])
def test_rows_that_come_late_are_sorted_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: slice, part: int
) -> None:
    monkeypatch.setattr("loadgen.measurement.row_file.PART", part)
    log, in_time = log_of(100), np.arange(100) < 90
    in_time[late] = False
    with RowFile(tmp_path, keep=True) as rows:
        for places in (in_time, np.arange(100)[late], np.arange(90, 100)):
            rows.add(RequestLog(**{name: getattr(log, name)[places] for name in NAMES}))
        assert_same(rows.log(), log)
    assert np.load(tmp_path / "done_ns.npy").tolist() == log.done_ns.tolist()


@pytest.mark.parametrize("n", [0, 100])
def test_rows_that_are_kept_are_files_of_numpy(tmp_path: Path, n: int) -> None:
    log, folder = log_of(100).rows(0, n), tmp_path / "new" / "log"
    with RowFile(folder, keep=True) as rows:
        added(rows, log, 3)
        found = RequestLog(**{name: np.load(folder / f"{name}.npy") for name in NAMES})  # whole while it grows
    assert_same(found, log)
    assert sorted(path.name for path in folder.iterdir()) == sorted(f"{name}.npy" for name in NAMES)
    mapped = np.load(folder / "done_ns.npy", mmap_mode="r")
    assert mapped.tolist() == log.done_ns.tolist()


def test_a_log_of_before_is_replaced(tmp_path: Path) -> None:
    for n in (100, 10):
        with RowFile(tmp_path, keep=True) as rows:
            rows.add(log_of(n))
    assert len(np.load(tmp_path / "outcome.npy")) == 10


def test_a_disk_that_is_full_is_two_lines_and_what_was_there_stays_readable(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with RowFile(tmp_path) as rows:
        rows.add(log_of(100))
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
            with pytest.raises(EnvironmentFailed) as failed:
                rows.add(log_of(1000))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, before)
        assert_same(rows.log(), log_of(100))
    assert failed.value.what == f"{tmp_path}: File too large, after the times of 100 requests."
    assert "--keep-log" in failed.value.fix


KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np
from loadgen.measurement.request_log import RequestLog
from loadgen.measurement.row_file import RowFile
column = np.arange(1_000_000)
log = RequestLog(scheduled_ns=column, sent_ns=column, done_ns=column, outcome=column.astype(np.uint8))
with RowFile(Path(sys.argv[1])) as rows:
    rows.add(log)
    assert len(rows.log()) == 1_000_000
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_leaves_no_file_behind(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


def test_the_first_folder_on_a_disk_with_room_is_taken(tmp_path: Path) -> None:
    memory = Path("/dev/shm")
    assert check_folder([memory, tmp_path / "not" / "there", Path()], 1000) == tmp_path / "not" / "there"
    with pytest.raises(BadInput, match=f"{memory} is in memory") as refused:
        check_folder([memory], 1e6)
    assert refused.value.what.startswith("The times of 1,000,000 requests take 0.025 GB on a disk")
    with pytest.raises(BadInput, match="GB free"):
        check_folder([tmp_path], 1e15)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_passed_over(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    assert check_folder([closed, tmp_path], 1000) == tmp_path
