"""Commands for load tests of several processes, and a user without a secret."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from waiting import wait_until

LOADTEST = [sys.executable, "-c", "from loadgen.cli import main; main()"]


def master_command(url: str, port: int, *options: str, workers: int = 2) -> list[str]:
    """Return `loadtest --master`, with its record on stdout."""
    command = [*LOADTEST, url, "--model", "delay", "--master", "--expect-workers", str(workers)]
    return [*command, "--port", str(port), "--json", *options]


def worker_command(port: int, *options: str) -> list[str]:
    """Return `loadtest --worker` for a master on this machine."""
    return [*LOADTEST, "--worker", "127.0.0.1", "--port", str(port), *options]


@contextmanager
def workers(port: int, *options: tuple[str, ...]) -> Iterator[list[subprocess.Popen[str]]]:
    """Start a worker per tuple of options; they end with their master, or are killed at the end of the block."""
    started = [
        subprocess.Popen(worker_command(port, *more), stderr=subprocess.PIPE, text=True) for more in options
    ]
    try:
        yield started
        for process in started:
            process.wait(timeout=240)
    finally:
        for process in started:
            process.kill()
            process.communicate()


def wait_until_listening(port: int) -> None:
    """Return once a process accepts connections."""

    def listening() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    wait_until(listening)
