"""Runs longer than memory: their times lie on a disk that may be full, and are removed unless they are kept."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from fake_triton import FakeTriton, fake_triton
from waiting import wait_until

from loadgen.records.record import LoadTestRecord

pytestmark = pytest.mark.system

COMMAND = [sys.executable, "-c", "from loadgen.cli import main; main()"]
LONG = ("--rate", "2000", "--duration", "6000s", "--warmup", "0s", "--timeout", "60s", "--max-send-lag", "30s")
"""Twelve million requests."""


@pytest.fixture(scope="module")
def server() -> Iterator[FakeTriton]:
    with fake_triton("--delay-ms", "2") as running:
        yield running


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own with some 360 MB, which is room for the times of twelve million requests."""
    place, image = tmp_path / "disk", tmp_path / "image"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(400 << 20)
    for command in (["mkfs.ext4", "-q", str(image)], ["mount", "-o", "loop", str(image), str(place)]):
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode:
            pytest.skip(f"this user may not mount: {done.stderr.decode().strip()}")
    (place / "lost+found").rmdir()
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


@contextlib.contextmanager
def started(server: FakeTriton, folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """The command while it runs; ended by force at the end of the block if need be."""
    command = [*COMMAND, server.url, "--model", "delay", *LONG, *options]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=folder, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def bytes_written(process: subprocess.Popen[str]) -> int:
    """How much lies in files without a name that the process holds."""
    sizes: dict[int, int] = {}  # per file: a mapping has a descriptor of its own to the same one
    for path in Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            name, about = str(path.readlink()), path.stat()
            if name.endswith("(deleted)") and "memfd:" not in name:
                sizes[about.st_ino] = about.st_size
    return sum(sizes.values())


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def ended_with_its_children(process: subprocess.Popen[str], number: int) -> tuple[str, str]:
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    out, err = process.communicate(timeout=240)
    _, alive = psutil.wait_procs(children, timeout=240)
    assert alive == []
    return out, err


@pytest.mark.long
def test_what_is_known_when_it_is_stopped_is_reported_and_no_file_is_left(
    server: FakeTriton, tmp_path: Path
) -> None:
    with started(server, tmp_path, "--json", "--output", "record.json") as process:
        wait_until(lambda: bytes_written(process) > 25 * 22_000)  # eleven seconds
        out, err = ended_with_its_children(process, signal.SIGINT)
    assert process.returncode == 130, err
    assert "errors 0, send lag p99" in err  # the live view has a line every ten seconds
    record = LoadTestRecord.model_validate_json(out)
    assert record.measurement is not None
    assert record.measurement.requests > 22_000
    assert record.measurement.percentiles_from == "every request"
    assert names_in(tmp_path) == ["record.json"]


def test_the_times_can_be_kept(server: FakeTriton, tmp_path: Path) -> None:
    done_ns = tmp_path / "log" / "done_ns.npy"
    with started(server, tmp_path, "--json", "--keep-log", "log") as process:
        wait_until(lambda: done_ns.exists() and done_ns.stat().st_size > 8 * 2000)
        out, _ = ended_with_its_children(process, signal.SIGINT)
    record = LoadTestRecord.model_validate_json(out)
    assert record.measurement is not None
    assert len(np.load(done_ns)) == record.measurement.requests
    latency_ms = (np.load(done_ns) - np.load(done_ns.with_name("scheduled_ns.npy"))) / 1e6
    assert record.measurement.latency_max_ms == latency_ms.max()


def test_a_kill_leaves_no_file_and_no_process(server: FakeTriton, tmp_path: Path) -> None:
    with started(server, tmp_path) as process:
        wait_until(lambda: bytes_written(process) > 25 * 2000)
        ended_with_its_children(process, signal.SIGKILL)
    assert names_in(tmp_path) == []


@pytest.mark.long
def test_a_disk_that_fills_up_ends_the_run_in_two_lines(server: FakeTriton, small_disk: Path) -> None:
    with started(server, small_disk) as process:
        wait_until(lambda: bytes_written(process) > 25 * 2000)
        children = psutil.Process(process.pid).children(recursive=True)
        with (small_disk / "filler").open("wb", buffering=0) as filler:
            try:
                while True:
                    filler.write(bytes(1 << 20))
            except OSError:
                pass
        out, err = process.communicate(timeout=240)
        _, alive = psutil.wait_procs(children, timeout=240)
    assert alive == []
    assert process.returncode == 3, err
    assert out == ""
    what, fix = err.splitlines()[-2:]
    assert what.startswith(f"error: {small_disk}: No space left on device, after the times of ")
    assert "--keep-log" in fix
    assert "Traceback" not in err
    assert names_in(small_disk) == ["filler"]


def test_a_disk_without_room_is_noticed_before_the_load(server: FakeTriton, small_disk: Path) -> None:
    with started(server, small_disk, "--duration", "60000s", "--keep-log", "log") as process:
        out, err = process.communicate(timeout=240)
    assert (process.returncode, out) == (2, "")
    what, fix = err.splitlines()[-2:]
    assert what.startswith("error: The times of 120,000,000 requests take 3 GB on a disk, and log has 0.")
    assert fix.strip().startswith("Make room there")
