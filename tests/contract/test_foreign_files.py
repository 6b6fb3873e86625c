"""Every command leaves what it did not make as it is: nothing else is deleted, renamed, replaced or changed."""

import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from engines import cnn_engine
from fake_triton import fake_triton
from file_events import file_events, trespasses
from onnx_models import small_cnn
from simulated_bench import SimulatedBench
from simulated_optimize import exit_code_of, interrupted_after, on_simulated

from loadgen.cli import run_command as run_loadtest
from loadgen.processes import MAGIC, MARKER
from loadgen.spec.limits import LatencyLimit
from model_repo.server.options import ServerOptions
from model_repo.server.triton import serve
from model_repo.spec import ServingConfig
from optimizer.cached import ResultCache
from optimizer.call_options import CallOptions
from optimizer.cli import run_command
from optimizer.config import OptimizeConfig

T = TypeVar("T")

MINE = "years of work"

MACHINE_CODE = [
    Path(__file__).parents[2] / folder / "__pycache__" for folder in ("search/simulator", "tests/support")
]
"""Where numba keeps the simulator, and the helper of tests that plays the server in its place."""


class Disk:
    """Folders with files of the user, the log of what commands do to files, and what is ours."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "events"
        self.home, self.temporary, self.work = (folder / name for name in ("home", "temporary", "work"))
        self.cache = self.home / ".cache" / "tritune"
        self.ours = list(MACHINE_CODE)
        self._users: dict[Path, Any] = {}
        for path in (
            self.work / "thesis.tex",
            self.work / ".thesis.tex.1.tritune-draft",
            self.work / "runs" / "old" / "recommendation.json",
            self.work / "runs" / "old" / ".lock",
            self.work / "runs" / "old" / "bundle" / "manifest.json",
            self.temporary / "tritune-notes" / "mine",
            self.temporary / "tritune-child-x" / "files" / "mine",
            self.cache / "mine",
            self.cache / "results" / "my-models" / "entry.json",
            self.cache / "engines" / "mine",
        ):
            self.users(path)
        for link in (self.temporary / "tritune-link", self.cache / "results" / f"my-{'0' * 32}"):
            self.users(link, to=self.work)

    def users(self, path: Path, *, to: Path | None = None) -> Path:
        """Make a file of the user, or a link; an existing file becomes one."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if to is not None:
            path.symlink_to(to)
        elif not path.exists():
            path.write_text(MINE)
        self._users[path] = _state(path)
        return path

    def left_by_a_killed_process(self) -> Path:
        """Make a temporary folder that nobody holds, with a link to the user's files in it."""
        folder = self.temporary / "tritune-child-dead"
        folder.mkdir()
        (folder / MARKER).write_bytes(MAGIC + b"1\n")
        (folder / "link").symlink_to(self.work)
        self.ours.append(folder)
        return folder

    def run(self, command: Callable[[], T]) -> T:
        """Run a command of ours under observation."""
        with file_events(self._log):
            return command()

    def check(self) -> None:
        assert trespasses(self._log / "events.jsonl", self.ours) == set()
        assert {path: _state(path) for path in self._users} == self._users


def _state(path: Path) -> Any:
    if not os.path.lexists(path):
        return None
    seen = path.lstat()
    return path.readlink() if path.is_symlink() else path.read_bytes(), seen.st_ino, seen.st_mode, seen.st_mtime_ns


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk(tmp_path)
    monkeypatch.chdir(made.work)
    monkeypatch.setattr(tempfile, "tempdir", str(made.temporary))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delenv("TRITUNE_CACHE", raising=False)
    for name, value in {
        "HOME": made.home,
        "XDG_CACHE_HOME": made.home / ".cache",
        "TMPDIR": made.temporary,
        "PYTHONDONTWRITEBYTECODE": "1",
    }.items():
        monkeypatch.setenv(name, str(value))
    return made


def searched(config: OptimizeConfig, bench: SimulatedBench, *, resume: bool) -> int:
    """Run `optimize` on a simulated server, and return its exit code."""
    return exit_code_of(config, CallOptions(resume=config.output if resume else None), on_simulated(bench))


def test_a_search_that_is_interrupted_resumed_and_bundled(disk: Disk) -> None:
    dead = disk.left_by_a_killed_process()
    run, bundle = disk.work / "runs" / "new", disk.work / "bundle"
    config = OptimizeConfig(
        limits=(LatencyLimit(limit_ms=50.0),),
        model=disk.users(small_cnn(disk.work / "cnn.onnx", batch=1)),  # it gets a batch, in a copy
        output=run,
        server="docker",
        precisions=("fp32",),
        price_per_hour_usd=2.0,
        time_budget_s=100.0,
        cache_dir=disk.cache,
        seed=3,
    )
    disk.ours.append(run)
    assert disk.run(lambda: searched(config, interrupted_after(3), resume=False)) == 130
    assert not dead.exists()
    assert (run / "bundle" / "manifest.json").is_file()
    for name in ("notes.txt", "model/mine.onnx", "model_repository/mine/config.pbtxt"):
        disk.users(run / name)
    assert disk.run(lambda: searched(config, SimulatedBench(), resume=True)) == 0  # replaces bundle and repository
    disk.check()

    disk.ours.append(bundle)  # the user names it
    make = ["bundle", str(run), "--output", str(bundle)]
    assert [disk.run(lambda: run_command(make)) for _ in range(2)] == [0, 0]
    disk.users(bundle / "notes.txt")
    assert disk.run(lambda: run_command(make)) == 2
    disk.check()
    assert disk.run(lambda: run_command([*make, "--force"])) == 0
    assert (disk.work / "bundle.old" / "notes.txt").read_text() == MINE


def test_a_full_cache(disk: Disk) -> None:
    cache = ResultCache(folder=disk.cache, most_bytes=100)
    source = disk.users(disk.work / "m.onnx")

    def fill() -> None:
        for number in range(3):
            cache.put("variant", {"number": number}, None, {"m.onnx": source})
        cache.remove("variant", {"number": 2})

    disk.run(fill)
    assert cache.find("variant", {"number": 0}) is None
    disk.check()


@pytest.mark.system
def test_a_load_test_that_writes_every_report_twice(disk: Disk) -> None:
    files = {"--output": "r.json", "--html": "r.html", "--junit": "r.xml", "--csv": "r"}
    for name in ("r.json.old", "r.csv", "r", ".r.json.x.tritune-draft"):
        disk.users(disk.work / name)
    options = [word for pair in files.items() for word in pair]
    names = ("r.json", "r.html", "r.xml", "r_stats.csv", "r_stats_history.csv", "r_failures.csv")
    disk.ours += [disk.work / name for name in names]
    with fake_triton("--delay-ms", "1") as server:
        command = [*f"{server.url} --model delay --rate 50 --duration 1s --warmup 0s".split(), *options]
        for _ in range(2):
            disk.run(lambda: run_loadtest(command))
    assert all((disk.work / name).is_file() for name in names)
    disk.check()


@pytest.mark.system
def test_a_server(disk: Disk) -> None:
    run = disk.work / "run"
    for name in ("server/mine", "repository/mine", "mine.log"):
        disk.users(run / name)
    config = ServingConfig(engine=cnn_engine(disk.work), max_batch_size=4)
    disk.users(disk.work / "cnn.onnx")

    def serve_two() -> None:
        with serve(ServerOptions(run_dir=run, exit_grace_s=0.1)) as server:
            server.load(config)
            server.load(replace(config, max_batch_size=8))
            server.unload()

    disk.run(serve_two)
    disk.check()
