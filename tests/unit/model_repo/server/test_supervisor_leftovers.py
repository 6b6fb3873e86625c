"""Tests that a new server removes the shared memory of servers whose supervisors were killed, and no other."""

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from model_repo.server import supervisor
from model_repo.server.supervisor import remove_leftovers

SHM = Path("/dev/shm")
HOLDS_A_LOCK = """
import os, signal, sys
from model_repo.server import supervisor
supervisor._hold_lock(sys.argv[1])
print(flush=True)
sys.stdin.read()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def prefix() -> Iterator[str]:
    name = f"tritune-{secrets.token_hex(6)}"
    region = SHM / f"{name}-region"
    region.write_bytes(b"0" * 100)
    yield name
    region.unlink(missing_ok=True)
    supervisor._lock_of(name).unlink(missing_ok=True)


def left(prefix: str) -> list[Any]:
    return [path for path in (SHM / f"{prefix}-region", supervisor._lock_of(prefix)) if path.exists()]


def test_what_a_killed_supervisor_left_goes(prefix: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDS_A_LOCK, prefix],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    holder.stdout.readline()
    remove_leftovers()
    assert len(left(prefix)) == 2
    holder.communicate()
    assert holder.returncode == -signal.SIGKILL
    remove_leftovers()
    assert left(prefix) == []


@pytest.mark.parametrize("name", ["tritune-", "tritune-*", "tritune-0123", "other"])
def test_a_lock_by_another_name_removes_nothing(prefix: str, name: str) -> None:
    lock = supervisor._lock_of(name)
    lock.write_bytes(b"held")
    try:
        remove_leftovers()
        assert lock.exists()
        assert len(left(prefix)) == 1
    finally:
        lock.unlink()


def test_a_lock_that_is_being_made_removes_nothing(prefix: str) -> None:
    supervisor._lock_of(prefix).touch()
    remove_leftovers()
    assert len(left(prefix)) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's file")
def test_another_users_lock_removes_nothing(prefix: str) -> None:
    lock = supervisor._lock_of(prefix)
    lock.write_bytes(b"held")
    os.chown(lock, 65534, -1)
    remove_leftovers()
    assert len(left(prefix)) == 2
