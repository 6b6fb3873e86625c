"""Temporary folders: gone with the block, or with the next run where the process was killed; nobody else's go."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadgen.processes import MAGIC, MARKER, remove_leftovers, scratch_folder

KILLED = """
import os, signal, sys
from pathlib import Path
from loadgen.processes import scratch_folder
with scratch_folder("test", Path(sys.argv[1]) if len(sys.argv) > 1 else None) as folder:
    (folder / "large").write_bytes(b"0" * 4096)
    (folder / "link").symlink_to(os.environ["ELSEWHERE"])
    print(folder, flush=True)
    if sys.stdin.read() == "die":
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "precious").write_text("precious")
    yield folder
    assert (folder / "precious").read_text() == "precious"


def started(elsewhere: Any, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", KILLED],
        env={**os.environ, "ELSEWHERE": str(elsewhere), "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_folder_is_empty_and_goes_with_the_block(tmp_path: Path) -> None:
    with scratch_folder("test", tmp_path) as folder:
        assert list(folder.iterdir()) == []
        (folder / "file").write_text("x")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_was_renamed_away_stays(tmp_path: Path) -> None:
    with scratch_folder("test", tmp_path) as folder:
        (folder / "file").write_text("x")
        folder.rename(tmp_path / "kept")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["file"]


def test_what_a_killed_process_left_goes_and_what_a_living_one_has_stays(tmp_path: Path, elsewhere: Any) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    killed, living = (started(elsewhere, TMPDIR=str(temporary)) for _ in range(2))
    killed_folder, living_folder = (process.stdout.readline() for process in (killed, living))
    killed.communicate("die")
    assert killed.returncode == -signal.SIGKILL
    assert len(list(temporary.iterdir())) == 2
    remove_leftovers(temporary)
    [left] = temporary.iterdir()
    assert str(left) in living_folder
    assert str(left) not in killed_folder
    assert living.communicate("end")
    assert list(temporary.iterdir()) == []


def test_the_next_run_removes_it_without_being_asked(tmp_path: Path, elsewhere: Any) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    for answer in ("die", "die", "end"):
        started(elsewhere, TMPDIR=str(temporary)).communicate(answer)
    assert list(temporary.iterdir()) == []


def marked(folder: Path, content: bytes = MAGIC) -> Path:
    folder.mkdir()
    (folder / MARKER).write_bytes(content)
    return folder


def test_only_our_own_folders_go(tmp_path: Path, elsewhere: Any) -> None:
    (elsewhere / MARKER).write_bytes(MAGIC)
    (tmp_path / "tritune-link").symlink_to(elsewhere, target_is_directory=True)
    (tmp_path / "tritune-file").write_bytes(MAGIC)
    (tmp_path / "tritune-unmarked").mkdir()
    marked(tmp_path / "tritune-being-made", b"")
    marked(tmp_path / "other-name")
    (tmp_path / "tritune-marker-is-a-link").mkdir()
    (tmp_path / "tritune-marker-is-a-link" / MARKER).symlink_to(elsewhere / MARKER)
    (tmp_path / "tritune-marker-is-a-fifo").mkdir()
    os.mkfifo(tmp_path / "tritune-marker-is-a-fifo" / MARKER)
    before = sorted(tmp_path.iterdir())
    marked(tmp_path / "tritune-dead")
    marked(tmp_path / ".tritune-dead")
    remove_leftovers(tmp_path)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's folder")
def test_another_users_folder_stays(tmp_path: Path) -> None:
    for name, whose in (("tritune-folder", 65534), ("tritune-marker", 0)):
        os.chown(marked(tmp_path / name), whose, -1)
    os.chown(tmp_path / "tritune-marker" / MARKER, 65534, -1)
    remove_leftovers(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_folder_that_cannot_be_looked_into_is_no_error(tmp_path: Path) -> None:
    remove_leftovers(tmp_path / "none")
