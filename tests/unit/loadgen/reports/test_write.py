from pathlib import Path

import numpy as np
import pytest
from load_records import record

from loadgen.errors import BadInput
from loadgen.measurement.request_log import RequestLog
from loadgen.records.record import LoadTestRecord
from loadgen.reports.write import check_writable, write_reports


def small_log() -> RequestLog:
    times = np.arange(1, 4, dtype=np.int64)
    return RequestLog(scheduled_ns=times, sent_ns=times, done_ns=times + 5, outcome=np.zeros(3, np.uint8))


def outputs(folder: Path) -> dict[str, Path]:
    names = {"--output": "run.json", "--html": "run.html", "--junit": "run.xml", "--csv": "run"}
    return {option: folder / name for option, name in names.items()}


def test_every_file_that_was_asked_for_is_written(tmp_path: Path) -> None:
    check_writable(outputs(tmp_path / "new"))
    assert write_reports(record(), small_log(), outputs(tmp_path / "new")) == []
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        "run.html",
        "run.json",
        "run.xml",
        "run_failures.csv",
        "run_stats.csv",
        "run_stats_history.csv",
    ]
    assert LoadTestRecord.model_validate_json((tmp_path / "new" / "run.json").read_bytes()) == record()


def test_a_file_that_cannot_be_written_does_not_keep_the_others_from_it(tmp_path: Path) -> None:
    asked = {"--output": Path("/proc/run.json"), "--junit": tmp_path / "run.xml"}
    (problem,) = write_reports(record(), None, asked)
    assert "/proc/run.json" in problem.what
    assert (tmp_path / "run.xml").exists()


@pytest.mark.parametrize("path", ["/proc/run.json", "/dev/full/run.json"])
def test_what_cannot_be_written_is_found_before_the_load(path: str) -> None:
    with pytest.raises(BadInput, match=path):
        check_writable({"--output": Path(path)})


def test_a_directory_is_not_a_report(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="directory"):
        check_writable({"--html": tmp_path})


def test_checking_leaves_nothing_behind_and_harms_no_old_report(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("old")
    check_writable({"--output": tmp_path / "run.json"})
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    assert (tmp_path / "run.json").read_text() == "old"


def test_times_that_are_kept_are_files_of_numpy_and_replace_those_of_before(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "log"
    for log in (small_log(), small_log().rows(0, 2)):
        assert write_reports(record(), log, {"--keep-log": folder}) == []
        assert sorted(path.stem for path in folder.iterdir()) == ["done_ns", "outcome", "scheduled_ns", "sent_ns"]
        for path in folder.iterdir():
            found, expected = np.load(path, mmap_mode="r"), getattr(log, path.stem)
            assert (found.dtype, found.tolist()) == (expected.dtype, expected.tolist())


def test_times_that_cannot_be_written_are_a_problem_and_no_half_file(tmp_path: Path) -> None:
    blocked = tmp_path / "done_ns.npy"
    blocked.mkdir()
    (problem,) = write_reports(record(), small_log(), {"--keep-log": tmp_path})
    assert problem.what.startswith(f"--keep-log {tmp_path} was not written: ")
    assert problem.exit_code == 3
    assert not any(path.name.startswith(".") for path in tmp_path.iterdir())
