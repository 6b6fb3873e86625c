"""Tests of reads from a folder that others may have changed, and of the files that are refused."""

import os
from pathlib import Path
from typing import Any

import pytest

from model_repo.repository.kept_files import open_kept, read_kept


def test_reads_a_file_below_the_folder_even_through_a_link_to_the_folder(tmp_path: Path) -> None:
    (tmp_path / "run" / "a").mkdir(parents=True)
    (tmp_path / "run" / "a" / "b.txt").write_bytes(b"kept")
    (tmp_path / "link").symlink_to(tmp_path / "run")
    assert read_kept(tmp_path / "run", "a/b.txt") == b"kept"
    assert read_kept(tmp_path / "link", "a/b.txt") == b"kept"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Return a run's directory whose files lead elsewhere, block, or never end."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "passwd").write_text("root")
    run = tmp_path / "run"
    run.mkdir()
    (run / "link").symlink_to(tmp_path / "secret" / "passwd")
    (run / "folder").symlink_to(tmp_path / "secret")
    (run / "zeros").symlink_to("/dev/zero")
    os.mkfifo(run / "pipe")
    (run / "inner").mkdir()
    return run


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "name",
    [
        "link", "folder/passwd", "zeros", "pipe", "inner", "none", "", ".", "/etc/passwd", "../secret/passwd",
        "inner/../../secret/passwd", "nul\0byte", "\ud800",
    ],
)  # fmt: skip
def test_nothing_else_is_opened(hostile: Any, name: str) -> None:
    handles = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OSError, match=r"."):
        open_kept(hostile, name)
    assert len(list(Path("/proc/self/fd").iterdir())) == handles


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * 11)
    assert len(read_kept(tmp_path, "large", most_bytes=11)) == 11
    with pytest.raises(OSError, match="larger than 10 bytes"):
        read_kept(tmp_path, "large", most_bytes=10)
