"""The inputs' file of a process that was killed while a server mapped it goes with the next run."""

import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loadgen.sending.shared_memory import PREFIX, SHARED, remove_leftovers

DEAD = 2**22 + 1  # beyond the kernel's largest pid


@pytest.fixture
def region(request: pytest.FixtureRequest) -> Iterator[Callable[[Any], Path]]:
    made = []

    def make(pid: Any) -> Path:
        path = SHARED / f"{PREFIX}{pid}-{os.getpid()}"
        path.write_bytes(b"0")
        made.append(path)
        return path

    yield make
    for path in made:
        path.unlink(missing_ok=True)


def test_the_file_of_a_dead_process_goes_and_that_of_a_living_one_stays(region: Any) -> None:
    dead, living = region(DEAD), region(os.getpid())
    remove_leftovers()
    assert not dead.exists()
    assert living.exists()


def test_a_file_that_a_process_of_another_container_holds_stays(region: Any) -> None:
    """Its pid means nothing here, its lock does."""
    path = region(DEAD)
    with path.open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        remove_leftovers()
        assert path.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's file")
def test_another_users_file_stays(region: Any) -> None:
    path = region(DEAD)
    os.chown(path, 65534, -1)
    remove_leftovers()
    assert path.exists()


def test_a_link_is_not_followed(region: Any, tmp_path: Path) -> None:
    path = region(DEAD)
    path.unlink()
    (tmp_path / "precious").write_text("precious")
    path.symlink_to(tmp_path / "precious")
    remove_leftovers()
    assert (tmp_path / "precious").read_text() == "precious"
