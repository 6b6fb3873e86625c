"""A run's directory that fails in mid-run: two lines at once, exit code 3, and what is finished is kept."""

import logging
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from killed_searches import search
from machine import fill, mounted_disk
from simulated_bench import SimulatedBench

from loadgen.errors import EnvironmentFailed, UserError, unforeseen
from model_repo.spec import ServingConfig
from optimizer.run.run_directory import logging_to
from search.records.run_files import read_trials
from search.study.patient_storage import PatientStorage

pytestmark = pytest.mark.long

TRIALS = 7
BEFORE = 3


class Failing(SimulatedBench):
    """Something happens to the run's directory while its fourth trial is under load."""

    def __init__(self, happens: Callable[[], object]) -> None:
        super().__init__()
        self.happens = happens

    def load(self, config: ServingConfig) -> None:
        super().load(config)
        if len(self.loaded) == BEFORE + 1:
            self.happens()


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(seconds: float) -> None:
        raise AssertionError(f"it was waited for, {seconds} s")

    monkeypatch.setattr(PatientStorage, "sleep", staticmethod(never))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted_disk(tmp_path / "disk", "2m") as place:
        yield place


def failed(folder: Path, happens: Callable[[], object]) -> UserError:
    """What the user sees of a search on which that happens."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - what it is, is looked at below
        search(folder, TRIALS, Failing(happens))
    error = caught.value
    return error if isinstance(error, UserError) else unforeseen(error)


def assert_two_lines_of_the_environment(error: UserError, *words: str) -> None:
    assert isinstance(error, EnvironmentFailed), error
    assert error.exit_code == 3
    for text in (error.what, error.fix):
        assert text
        assert "\n" not in text
    assert any(word in error.what for word in words), error.what
    assert "resume" in error.fix


def make_read_only(folder: Path) -> None:
    """From here on; what is open stays open."""
    subprocess.run(["mount", "--bind", folder, folder], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)


def test_a_directory_that_is_removed(tmp_path: Path, no_waiting: None) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    error = failed(folder, lambda: shutil.rmtree(folder))
    assert_two_lines_of_the_environment(error, "No such file or directory")
    assert not folder.exists()  # what would pass for a run is not begun in its place


def test_a_directory_that_is_renamed(tmp_path: Path, no_waiting: None) -> None:
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    folder.mkdir()
    error = failed(folder, lambda: folder.rename(elsewhere))
    assert_two_lines_of_the_environment(error, "No such file or directory")
    assert len(read_trials(elsewhere)) == BEFORE
    elsewhere.rename(folder)
    search(folder, TRIALS)
    assert [trial.number for trial in read_trials(folder)] == list(range(TRIALS))


def test_trials_that_are_removed_are_written_once_more(tmp_path: Path) -> None:
    bench = Failing((tmp_path / "trials.jsonl").unlink)
    search(tmp_path, TRIALS, bench)
    assert [trial.number for trial in read_trials(tmp_path)] == list(range(TRIALS))


def test_a_directory_that_becomes_a_file(tmp_path: Path, no_waiting: None) -> None:
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    folder.mkdir()
    error = failed(folder, lambda: (folder.rename(elsewhere), folder.write_text("")))
    assert_two_lines_of_the_environment(error, "Not a directory")


def test_a_full_disk(small_disk: Path, no_waiting: None, capfd: pytest.CaptureFixture[str]) -> None:
    folder = small_disk / "run"
    folder.mkdir()
    with logging_to(folder / "optimize.log"):
        error = failed(folder, lambda: fill(folder))
        for _ in range(100):
            logging.getLogger("tritune").info("x" * 1000)
    assert_two_lines_of_the_environment(error, "No space left on device", "database or disk is full")
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")  # no traceback of a log that takes no more
    before = read_trials(folder)
    assert [trial.number for trial in before] in (list(range(BEFORE)), list(range(BEFORE + 1)))
    (folder / "filler").unlink()
    search(folder, TRIALS)
    after = read_trials(folder)
    assert after[: len(before)] == before
    assert [trial.number for trial in after] == list(range(TRIALS))


def test_a_disk_that_becomes_read_only(small_disk: Path, no_waiting: None) -> None:
    folder = small_disk / "run"
    folder.mkdir()
    error = failed(folder, lambda: make_read_only(folder))
    assert_two_lines_of_the_environment(error, "Read-only file system", "readonly database")
    assert len(read_trials(folder)) == BEFORE
    subprocess.run(["umount", folder], check=True)
    search(folder, TRIALS)
    assert [trial.number for trial in read_trials(folder)] == list(range(TRIALS))


def test_a_study_that_is_no_database_any_more(tmp_path: Path, no_waiting: None) -> None:
    error = failed(tmp_path, lambda: (tmp_path / "study.db").write_bytes(b"\0" * 100_000))
    assert_two_lines_of_the_environment(error, "The storage cannot be used")
    assert len(read_trials(tmp_path)) >= BEFORE
