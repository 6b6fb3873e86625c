"""Puts faults into a module, one at a time, and counts those that its tests notice.

    python tests/prove/mutants.py MODULE [--most N] [--survivors] [--uncompiled] TEST_FILE ...

Each fault is tried in a process of its own, forked from one that has imported all that does not need the module:
it runs the tests that came by the changed lines, the fastest first, until one fails. A test that takes ten times
what it took without the fault has failed, too. Of more than N faults, N are drawn with a fixed seed. What was
tried is kept in build/mutants/ and not tried again. With `--survivors` only those that nothing noticed so far are
tried again, and no table is written. With `--uncompiled`, what numba would compile is run by Python.

Fails if fewer than 90 in 100 are noticed, or if `survivors.md` does not say of each that was not noticed why.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import random
import resource
import select
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mutations import Mutant

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
SURVIVORS = HERE / "survivors.md"
LEAST_NOTICED = 0.9
SEED = 16
TIMES_LONGER, AT_LEAST_S = 10.0, 5.0
MEMORY_BYTES = 4 * 2**30
QUIET = ("-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--assert=plain", "-m", "not alone")
PACKAGES = ("deploy", "loadgen", "model_repo", "optimizer", "search")
NOTICED, SURVIVED, TOO_LONG = "noticed", "survived", "too long"

UNCOMPILED = """
for _name, _value in list(globals().items()):
    if isinstance(_value, np.dtype):
        globals()[_name] = np.dtype((np.record, _value))
"""
"""Added to a module that numba does not compile: its records have attributes only there."""


class Chosen:
    """A plugin: runs these tests only, in this order, and draws the same examples each time."""

    def __init__(self, wanted: list[str] | None) -> None:
        self._wanted = wanted

    def pytest_configure(self) -> None:
        from hypothesis import settings

        settings.register_profile("mutants", settings.get_profile("tritune"), derandomize=True, database=None)
        settings.load_profile("mutants")

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        if self._wanted is not None:
            place = {name: at for at, name in enumerate(self._wanted)}
            items[:] = sorted(
                (item for item in items if item.nodeid in place), key=lambda item: place[item.nodeid]
            )


@dataclass(slots=True)
class Clean:
    """A plugin: which lines of a file each test comes by, and how long it takes."""

    file: str
    lines: dict[str, set[int]] = field(default_factory=dict)
    seconds: Counter[str] = field(default_factory=Counter)
    now: set[int] = field(default_factory=set)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.now = self.lines.setdefault(nodeid, set())
        sys.settrace(self._entered)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        sys.settrace(None)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] += report.duration

    def _entered(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != self.file:
            return None
        self.now.add(frame.f_lineno)
        return self._line

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        self.now.add(frame.f_lineno)
        return self._line


class Changed(importlib.abc.MetaPathFinder):
    """Imports one module from other source."""

    def __init__(self, module: str, file: Path, source: str) -> None:
        self._module = module

        class Loader(importlib.machinery.SourceFileLoader):
            def get_code(self, fullname: str) -> CodeType:
                return compile(source, str(file), "exec")

        self._loader = Loader(module, str(file))

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> Any:
        return importlib.util.spec_from_loader(name, self._loader) if name == self._module else None


class Trial:
    """Runs the tests of a module in processes of their own."""

    def __init__(self, module: str, tests: list[str], *, uncompiled: bool) -> None:
        self._module, self._tests, self._added = module, tests, UNCOMPILED if uncompiled else ""
        os.environ["NUMBA_DISABLE_JIT"] = str(int(uncompiled))  # before it is imported
        self.file = ROOT / f"{module.replace('.', '/')}.py"
        sys.path.insert(0, str(ROOT))
        with _quiet():
            _run_pytest(tests, Chosen(None), "--collect-only")  # imports everything
        self._forget()

    def _forget(self) -> None:
        """What needs the module is imported anew in each process, and the tests with their support."""
        import grimp

        graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True)
        stale = {self._module, *graph.find_downstream_modules(self._module)}
        for name, module in list(sys.modules.items()):
            origin = getattr(module, "__file__", None) or ""
            if name != "__main__" and (name in stale or origin.startswith(f"{ROOT}/tests/")):
                del sys.modules[name]
                parent, _, last = name.rpartition(".")
                if last in vars(sys.modules.get(parent, ModuleType("none"))):
                    delattr(sys.modules[parent], last)

    def _import_from(self, source: str) -> None:
        sys.meta_path.insert(0, Changed(self._module, self.file, source + self._added))
        sys.dont_write_bytecode = True

    def clean(self) -> tuple[dict[str, set[int]], dict[str, float]]:
        """The lines of the module that each test comes by, and its seconds. Raises SystemExit if one fails."""

        def run() -> bytes:
            self._import_from(self.file.read_text())
            plugin = Clean(str(self.file))
            if _run_pytest(self._tests, Chosen(None), plugin=plugin):
                return b""
            lines = {name: sorted(found) for name, found in plugin.lines.items()}
            return json.dumps([lines, plugin.seconds]).encode()

        said = _forked(run, 600.0)
        if not said:
            raise SystemExit(f"The tests of {self._module} fail without any fault.")
        lines, seconds = json.loads(said)
        return {name: set(found) for name, found in lines.items()}, seconds

    def fate(self, source: str, wanted: list[str], seconds: float) -> str:
        """What becomes of a fault."""

        def run() -> bytes:
            self._import_from(source)
            files = sorted({name.split("::")[0] for name in wanted})
            return NOTICED.encode() if _run_pytest(files, Chosen(wanted)) else SURVIVED.encode()

        said = _forked(run, AT_LEAST_S + TIMES_LONGER * seconds)
        return TOO_LONG if said is None else said.decode() or NOTICED  # it took the process down


def _run_pytest(files: list[str], *plugins: Any, plugin: Any = None) -> int:
    import pytest

    options = [one for one in plugins if isinstance(one, str)]
    loaded = [one for one in (*plugins, plugin) if one is not None and not isinstance(one, str)]
    return int(pytest.main([*QUIET, *options, *files], plugins=loaded))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    kept = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    yield
    sys.stdout.flush()
    os.dup2(kept, 1)
    os.close(kept)
    os.close(nowhere)


def _forked(run: Callable[[], bytes], timeout_s: float) -> bytes | None:
    """What it returns in a process of its own: empty if that died, None if it took too long."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            os.setpgid(0, 0)
            os.close(reading)
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
            nowhere = os.open(os.devnull, os.O_RDWR)
            for number in range(3):
                os.dup2(nowhere, number)
            os.write(writing, run())
        os._exit(0)
    os.close(writing)
    said, ends_at = b"", time.monotonic() + timeout_s
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        while left_s := max(0.0, ends_at - time.monotonic()):
            if not select.select([pipe], [], [], left_s)[0]:
                break
            part = pipe.read(1 << 16)
            said += part
            if not part:
                break
    in_time = time.monotonic() < ends_at
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return said if in_time else None


@dataclass(slots=True)
class Kept:
    """The fates so far: a line each, of this source and these tests."""

    path: Path
    source: str
    tests: str
    fates: dict[int, str] = field(default_factory=dict)

    def read(self, *, other_tests: bool) -> None:
        """With `other_tests`, also what tests noticed that have changed since."""
        for line in self.path.read_text().splitlines() if self.path.exists() else ():
            record = json.loads(line)
            if record["source"] == self.source and (other_tests or record["tests"] == self.tests):
                self.fates[record["number"]] = record["fate"]

    def add(self, number: int, fate: str) -> None:
        self.fates[number] = fate
        self.path.parent.mkdir(parents=True, exist_ok=True)
        record = {"source": self.source, "tests": self.tests, "number": number, "fate": fate}
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")


def _checksum(files: Iterable[Path]) -> str:
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:16]


def tried(
    module: str, tests: list[str], most: int, *, survivors: bool, uncompiled: bool
) -> tuple[list[Mutant], list[Mutant], dict[int, str]]:
    """All faults of a module, those of them that were drawn, and what became of these."""
    from mutations import mutants

    trial = Trial(module, tests, uncompiled=uncompiled)
    kept = Kept(
        ROOT / "build" / "mutants" / f"{module}.jsonl",
        _checksum((HERE / "mutations.py", trial.file)),
        _checksum(ROOT / test for test in tests),
    )
    kept.read(other_tests=survivors)
    every = mutants(trial.file.read_text())
    drawn = list(range(len(every)))
    random.Random(SEED).shuffle(drawn)
    drawn = sorted(drawn[:most])  # fewer are a part of more
    lines, seconds = trial.clean()
    for mutant in (every[number] for number in drawn):
        known = kept.fates.get(mutant.number)
        if known is not None and not (survivors and known == SURVIVED):
            continue
        place = set(range(mutant.first, mutant.last + 1))
        wanted = [name for name in lines if mutant.at_import or lines[name] & place]
        wanted.sort(key=lambda name: seconds[name])
        fate = trial.fate(mutant.source, wanted, sum(seconds[name] for name in wanted)) if wanted else SURVIVED
        kept.add(mutant.number, fate)
        if fate == SURVIVED:
            print(f"{len(wanted)} tests: {mutant.first} {mutant.said}", flush=True)
    return every, [every[number] for number in drawn], kept.fates


def explained(module: str, text: str) -> set[str]:
    """What `survivors.md` says of a module: its section holds a list for each reason."""
    _, _, section = f"\n{text}".partition(f"\n## {module}\n")
    return {line[2:] for line in section.partition("\n## ")[0].splitlines() if line.startswith("- ")}


def table(module: str, every: list[Mutant], drawn: list[Mutant], fates: dict[int, str]) -> str:
    """Counts per function, and the faults that nothing noticed."""
    of_all, of_drawn = (Counter(mutant.function or "-" for mutant in some) for some in (every, drawn))
    noticed = Counter(mutant.function or "-" for mutant in drawn if fates[mutant.number] != SURVIVED)
    rows = [f"| {name} | {count} | {of_drawn[name]} | {noticed[name]} |" for name, count in of_all.items()]
    heads = ("| function | faults | tried | noticed |", "| --- | --: | --: | --: |")
    total = f"| **all** | {len(every)} | {len(drawn)} | {sum(noticed.values())} |"
    lines = (f"# Faults put into {module}", "", *heads, *rows, total, "", "## Not noticed", "")
    unnoticed = [f"- {mutant.said}" for mutant in drawn if fates[mutant.number] == SURVIVED]
    return "\n".join((*lines, *(unnoticed or ["None."]), ""))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module")
    parser.add_argument("tests", nargs="+")
    parser.add_argument("--most", type=int, default=100_000)
    parser.add_argument("--survivors", action="store_true")
    parser.add_argument("--uncompiled", action="store_true")
    given = parser.parse_args()
    how = {"survivors": given.survivors, "uncompiled": given.uncompiled}
    every, drawn, fates = tried(given.module, given.tests, given.most, **how)
    survived = [mutant for mutant in drawn if fates[mutant.number] == SURVIVED]
    known = explained(given.module, SURVIVORS.read_text())
    unexplained = [mutant for mutant in survived if mutant.said not in known]
    for mutant in unexplained:
        print(f"line {mutant.first}, not explained: {mutant.said}")
    noticed = len(drawn) - len(survived)
    too_long = sum(fates[mutant.number] == TOO_LONG for mutant in drawn)
    share = f"{noticed} of {len(drawn)} faults noticed ({100 * noticed / len(drawn):.0f} %)"
    print(f"{share}, {too_long} of them by a test that went on; {len(every)} in all")
    if unexplained or noticed < LEAST_NOTICED * len(drawn):
        return 1
    if not given.survivors:
        (HERE / "tables" / f"mutants-{given.module}.md").write_text(table(given.module, every, drawn, fates))
    return 0


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
