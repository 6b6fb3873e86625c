"""Ports and small disks of this machine."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def free_port() -> int:
    """Return a port on the loopback address without a listener."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextmanager
def mounted_disk(place: Path, size: str) -> Iterator[Path]:
    """Mount a disk of this size at a new folder until the block ends; skip the test if this user may not."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"this user may not mount: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def fill(place: Path) -> None:
    """Fill a disk to the last byte."""
    with (place / "filler").open("wb", buffering=0) as filler:
        for size in (1 << 16, 1):
            try:
                while True:
                    filler.write(b"x" * size)
            except OSError:
                continue
