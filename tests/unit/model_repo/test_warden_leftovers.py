"""Shared memory of servers whose wardens were killed goes with the next one; that of living wardens stays."""

import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from model_repo import warden
from model_repo.warden import remove_leftovers

SHM = Path("/dev/shm")
HOLDS_A_LOCK = """
import os, signal, sys
from model_repo import warden
warden._hold_lock(sys.argv[1])
print(flush=True)
sys.stdin.read()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def prefix():
    name = f"tritune-{secrets.token_hex(6)}"
    region = SHM / f"{name}-region"
    region.write_bytes(b"0" * 100)
    yield name
    region.unlink(missing_ok=True)
    warden._lock_of(name).unlink(missing_ok=True)


def left(prefix):
    return [path for path in (SHM / f"{prefix}-region", warden._lock_of(prefix)) if path.exists()]


def test_what_a_killed_warden_left_goes(prefix):
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
def test_a_lock_by_another_name_removes_nothing(prefix, name):
    lock = warden._lock_of(name)
    lock.write_bytes(b"held")
    try:
        remove_leftovers()
        assert lock.exists()
        assert len(left(prefix)) == 1
    finally:
        lock.unlink()


def test_a_lock_that_is_being_made_removes_nothing(prefix):
    warden._lock_of(prefix).touch()
    remove_leftovers()
    assert len(left(prefix)) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's file")
def test_another_users_lock_removes_nothing(prefix):
    lock = warden._lock_of(prefix)
    lock.write_bytes(b"held")
    os.chown(lock, 65534, -1)
    remove_leftovers()
    assert len(left(prefix)) == 2
