"""Worker processes on this machine, one for each GPU, which end with the block that needs them."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from optimizer.gpu_choice import VISIBLE
from optimizer.options import STORAGE_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

COMMAND = (sys.executable, "-P", "-c", "from optimizer.cli import main; main()", "worker")
"""-P: a folder in the current directory that is named like one of our packages must not come first."""

LEAVE_S = 30.0
LOG_FILE = "worker.log"


@contextmanager
def workers_on(
    gpus: Sequence[str], *, storage: str, arguments: Sequence[str], folder: Path
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """A worker on each of these GPUs until the block ends; each has a folder of its own below `folder`.

    The storage's URL travels in the environment, where no process list shows it.
    """
    started: list[subprocess.Popen[bytes]] = []
    try:
        for number, gpu in enumerate(gpus, 1):
            mine = folder / f"gpu-{number}"
            mine.mkdir(parents=True, exist_ok=True)
            environment = {**os.environ, VISIBLE: gpu, STORAGE_VARIABLE: storage}
            with (mine / LOG_FILE).open("ab") as log:
                command = [*COMMAND, *arguments, "--output", str(mine), "--workers", "1"]
                started.append(
                    subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
                )
        yield started
    finally:
        _end(started)


def _end(started: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ask them to leave, and end those that do not."""
    for process in started:
        process.terminate()
    for process in started:
        try:
            process.wait(timeout=LEAVE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
