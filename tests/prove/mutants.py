"""Puts faults into a module, one at a time, and counts those that its tests notice.

    python tests/prove/mutants.py MODULE [--most N] [--uncompiled] TEST_FILE ...

Each fault is tried in a process of its own, forked from one that has imported all that does not need the module:
it runs the tests that came by the changed lines, the fastest first, until one fails. A test that takes ten times
what it took without the fault, and five seconds, has failed, too. Of more than N faults, N are drawn with a fixed
seed. What was tried is kept in build/mutants/; what was noticed is not tried again while the test that noticed it
is the same. With `--uncompiled`, what numba would compile is run by Python.

Fails if fewer than 90 in 100 are noticed, or if `survivors.md` does not say of each that was not noticed why.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
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
from collections.abc import Callable, Iterable, Iterator, Mapping
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
RESULTS = ROOT / "build" / "mutants"
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
    """A plugin: runs these tests only, in this order, and draws the same examples each time.

    `seconds` are what each takes without a fault; all tests where there are none. `failed` is the one that did.
    """

    def __init__(self, seconds: Mapping[str, float] | None = None) -> None:
        self._seconds = seconds
        self.failed: str = ""
        self.fate = NOTICED

    def pytest_configure(self) -> None:
        from hypothesis import settings

        settings.register_profile("mutants", settings.get_profile("tritune"), derandomize=True, database=None)
        settings.load_profile("mutants")

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        import pytest

        if self._seconds is None:
            return
        place = {name: at for at, name in enumerate(self._seconds)}
        found = [item for item in items if item.nodeid in place]
        items[:] = sorted(found, key=lambda item: place[item.nodeid])
        for item in items:
            limit_s = AT_LEAST_S + TIMES_LONGER * self._seconds[item.nodeid]
            item.add_marker(pytest.mark.timeout(limit_s), append=False)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid
            self.fate = TOO_LONG if "Timeout (>" in str(report.longrepr) else NOTICED


@dataclass(slots=True, eq=False)
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

    def __init__(self, module: str, tests: list[str], *, file: Path, uncompiled: bool) -> None:
        self._module, self._tests, self._added = module, tests, UNCOMPILED if uncompiled else ""
        os.environ["NUMBA_DISABLE_JIT"] = str(int(uncompiled))  # before it is imported
        self.file = file
        self._output = RESULTS / f"{module}.txt"
        RESULTS.mkdir(parents=True, exist_ok=True)
        sys.path.insert(0, str(ROOT))
        with _quiet():
            _run_pytest(tests, Chosen(), "--collect-only")  # imports everything
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
            if _run_pytest(self._tests, Chosen(), plugin=plugin):
                return b""
            lines = {name: sorted(found) for name, found in plugin.lines.items()}
            return json.dumps([lines, plugin.seconds]).encode()

        said = _forked(run, 600.0, self._output)
        if not said:
            raise SystemExit(f"{self._output.read_text()}The tests of {self._module} fail without any fault.")
        lines, seconds = json.loads(said)
        return {name: set(found) for name, found in lines.items()}, seconds

    def fate(self, source: str, wanted: dict[str, float]) -> tuple[str, str]:
        """What becomes of a fault that so many seconds of tests come by, and which of them noticed it."""

        def run() -> bytes:
            self._import_from(source)
            chosen = Chosen(wanted)
            ended = _run_pytest(sorted({name.split("::")[0] for name in wanted}), chosen)
            return json.dumps([chosen.fate, chosen.failed] if ended else [SURVIVED, ""]).encode()

        said = _forked(run, AT_LEAST_S * len(wanted) + TIMES_LONGER * sum(wanted.values()), self._output)
        if said is None:
            return TOO_LONG, ""
        fate, test = json.loads(said or f'["{NOTICED}", ""]')  # nothing: it took the process down
        return fate, test


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


def _forked(run: Callable[[], bytes], timeout_s: float, output: Path) -> bytes | None:
    """What it returns in a process of its own: empty if that died, None if it took too long.

    What that prints goes to the file `output`.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            os.setpgid(0, 0)
            os.close(reading)
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
            said_at = os.open(output, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            for number in range(3):
                os.dup2(said_at, number)
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
    """The fates so far: a line each, of a source and of the test that noticed; of all tests where none did."""

    path: Path
    source: str
    tests: str
    fates: dict[int, str] = field(default_factory=dict)
    by: dict[int, str] = field(default_factory=dict)

    def read(self) -> None:
        """What still holds. Which test noticed a fault is known even where it is another test by now."""
        for line in self.path.read_text().splitlines() if self.path.exists() else ():
            record = json.loads(line)
            if record["source"] == self.source:
                self.by[record["number"]] = record["by"]
                self.fates.pop(record["number"], None)
                if record["tests"] == self._checksum_of(record["by"]):
                    self.fates[record["number"]] = record["fate"]

    def add(self, number: int, fate: str, by: str) -> None:
        self.fates[number] = fate
        tests = self._checksum_of(by)
        record = {"source": self.source, "tests": tests, "number": number, "fate": fate, "by": by}
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def _checksum_of(self, test: str) -> str:
        return _checksum_of_test(test) if test else self.tests


@functools.cache
def _checksum_of_test(test: str) -> str:
    """Of a test and all of its file that is no other test."""
    file, _, name = test.partition("::")
    path, name = ROOT / file, name.partition("[")[0].partition("::")[0]
    tree = ast.parse(path.read_text() if path.exists() else "")
    kept = [node for node in tree.body if not getattr(node, "name", "").startswith("test_") or node.name == name]  # type: ignore[attr-defined]
    return hashlib.sha256("\n".join(map(ast.unparse, kept)).encode()).hexdigest()[:16]


def _checksum(files: Iterable[Path]) -> str:
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:16]


def tried(
    module: str, tests: list[str], most: int, *, uncompiled: bool
) -> tuple[list[Mutant], list[Mutant], dict[int, str]]:
    """All faults of a module, those of them that were drawn, and what became of these."""
    from mutations import mutants

    file = ROOT / f"{module.replace('.', '/')}.py"
    code = (_checksum((HERE / "mutations.py", file)), _checksum(ROOT / test for test in tests))
    kept = Kept(RESULTS / f"{module}.jsonl", *code)
    kept.read()
    every = mutants(file.read_text())
    numbers = list(range(len(every)))
    random.Random(SEED).shuffle(numbers)
    drawn = [every[number] for number in sorted(numbers[:most])]  # fewer are a part of more
    left = [mutant for mutant in drawn if mutant.number not in kept.fates]
    if left:
        trial = Trial(module, tests, file=file, uncompiled=uncompiled)
        lines, seconds = trial.clean()
        for mutant in left:
            place = set(range(mutant.first, mutant.last + 1))
            wanted = [name for name in lines if mutant.at_import or lines[name] & place]
            before = kept.by.get(mutant.number)
            wanted.sort(key=lambda name: (name != before, seconds[name]))
            fate, by = (
                trial.fate(mutant.source, {name: seconds[name] for name in wanted}) if wanted else (SURVIVED, "")
            )
            kept.add(mutant.number, fate, by)
            if fate == SURVIVED:
                print(f"{len(wanted)} tests: {mutant.first} {mutant.said}", flush=True)
    return every, drawn, kept.fates


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
    parser.add_argument("--uncompiled", action="store_true")
    given = parser.parse_args()
    every, drawn, fates = tried(given.module, given.tests, given.most, uncompiled=given.uncompiled)
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
    (HERE / "tables" / f"mutants-{given.module}.md").write_text(table(given.module, every, drawn, fates))
    return 0


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
