"""Puts faults into a module, one at a time, and prints those that its tests do not notice.

    python tests/support/mutants.py package.folder.module [--most N] [TEST_FILE ...]

The tests are `tests/unit/package/folder/test_module*.py`, or where there are none those of the modules that import
it, the others of that folder and of `tests/property` that import it, and those given, but none marked `measure` or
`long`. Each fault is tried in a process of its own, forked from one that has imported all that does not need the
module. It runs the tests that come by the changed lines, the fastest first, until one fails. A test that takes ten
times what it took without the fault, and five seconds, has failed, too. What numba would compile is run by Python.
Nothing is kept.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import functools
import multiprocessing
import os
import random
import resource
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

import grimp
import pytest

ROOT = Path.cwd()
SEED = 16
TIMES_LONGER, MIN_S, CLEAN_S = 10.0, 5.0, 900.0
MEMORY_BYTES = 4 * 2**30
QUIET = ("-qx", "-pno:cacheprovider", "-pno:xdist", "--assert=plain", "-mnot measure and not long")

AS_RECORDS = """
for _name, _value in list(globals().items()):
    if isinstance(_value, np.dtype):
        globals()[_name] = np.dtype((np.record, _value))
"""
"""Added to a module that numba does not compile: its records have attributes only there."""

LEFT_ALONE = (ast.Import, ast.ImportFrom, ast.Raise, ast.Assert)
TYPES = ("annotation", "returns", "decorator_list")
PAIRS = (
    (ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.LShift, ast.RShift), (ast.BitAnd, ast.BitOr), (ast.And, ast.Or),
    (ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn),
)  # fmt: skip
OTHER: dict[Any, Any] = {
    **dict(PAIRS), **{other: one for one, other in PAIRS},
    ast.FloorDiv: ast.Div, ast.Mod: ast.Div, ast.Pow: ast.Mult, ast.MatMult: ast.Mult, ast.BitXor: ast.BitAnd,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One changed place: another value in a field of a node. A statement has it in these lines."""

    node: ast.AST
    field: str
    value: Any
    lines: range
    at_import: bool  # no test comes by the lines: a constant, or what is given where an argument is not

    def text(self, tree: ast.Module) -> str:
        """The module with the fault; the tree stays as it is."""
        before = vars(self.node)[self.field]
        vars(self.node)[self.field] = self.value
        text = ast.unparse(tree)
        vars(self.node)[self.field] = before
        return text

    def said(self, tree: ast.Module) -> str:
        """The line before and after."""
        lines = zip(ast.unparse(tree).splitlines(), self.text(tree).splitlines(), strict=False)
        before, after = next(pair for pair in lines if pair[0] != pair[1])
        return f"{before.strip()} -> {after.strip()}"


def faults(node: ast.AST, statement: ast.AST | None = None, at_import: bool = True) -> Iterator[Fault]:
    """All faults of a module, in the order of their places. `statement` is what has the node in its lines."""
    for name, value in ast.iter_fields(node):
        inside = at_import and not (name == "body" and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
        children = value if isinstance(value, list) else [value]
        for at, child in enumerate(children):
            if not isinstance(child, ast.AST) or name in TYPES or _left_alone(child, inside):
                continue
            whole = statement
            if isinstance(child, ast.stmt):
                whole = None if hasattr(child, "body") else child
            place: Any = whole or (child.pattern if isinstance(child, ast.match_case) else child)
            for changed in _changes(child):
                new = [*children[:at], changed, *children[at + 1 :]] if isinstance(value, list) else changed
                lines = range(place.lineno, place.end_lineno + 1)
                yield Fault(node=node, field=name, value=new, lines=lines, at_import=inside)
            yield from faults(child, whole, inside)


def _left_alone(node: ast.AST, at_import: bool) -> bool:
    """Messages, and what is said to a type checker."""
    match node:
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.Call(func=ast.Name(id="cast")):
            return True
        case ast.Assign(value=ast.Subscript() | ast.Call(func=ast.Name(id="TypeVar"))):
            return at_import
    return isinstance(node, LEFT_ALONE)


def _changes(node: Any) -> Iterator[ast.AST]:  # noqa: C901 - a case for each kind of code
    """What may stand in the place of a node. Words stay: goldens compare them."""
    match node:
        case ast.BinOp(op=op) | ast.BoolOp(op=op) | ast.AugAssign(op=op):
            yield _with(node, op=OTHER[type(op)]())
            if isinstance(node, ast.AugAssign):
                yield ast.Assign(targets=[node.target], value=node.value, lineno=node.lineno)
        case ast.Compare(ops=ops):
            for at, one in enumerate(ops):
                yield _with(node, ops=[*ops[:at], OTHER[type(one)](), *ops[at + 1 :]])
        case ast.UnaryOp(operand=operand):
            yield operand
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            small = isinstance(value, int) and value <= 16  # no test has to see 50,000,001 ns
            yield ast.Constant(value + 1 if small or not value else 2 * value)
        case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
            yield _with(node, value=ast.Constant("" if ast.unparse(value) == "None" else None))
        case ast.Lambda():
            yield _with(node, body=ast.Constant(None))
        case ast.IfExp(body=body, orelse=orelse):
            yield from (body, orelse)
        case ast.If(test=test) | ast.While(test=test):
            yield _with(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.match_case(guard=None):
            yield _with(node, guard=ast.Constant(False))
        case ast.Expr(value=ast.Call() | ast.Await()):  # done only for its effect
            yield ast.Pass()
        case ast.Break():
            yield ast.Return()
        case ast.Continue():
            yield ast.Break()
        case ast.Call(args=args, keywords=keywords):
            for at, _ in enumerate(args):
                yield _with(node, args=[*args[:at], *args[at + 1 :]])
                yield _with(node, args=[*args[:at], ast.Constant(None), *args[at + 1 :]])
            for at, _ in enumerate(keywords):
                yield _with(node, keywords=[*keywords[:at], *keywords[at + 1 :]])


def _with(node: Any, **fields: Any) -> Any:
    changed = copy.copy(node)
    vars(changed).update(fields)
    return changed


def _import_from(module: str) -> dict[str, str]:
    """Has modules imported from the texts that it returns: this one, and all in its folder if it uses numba."""
    texts = {module: file_of(module).read_text()}
    if "import numba" in texts[module]:
        os.environ["NUMBA_DISABLE_JIT"] = "1"  # before it is imported
        for file in file_of(module).parent.glob("*.py"):
            if "import numba" in (text := file.read_text()):
                texts[f"{module.rpartition('.')[0]}.{file.stem}"] = text + AS_RECORDS
    usual = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, name: str) -> CodeType | None:
        return compile(texts[name], loader.path, "exec") if name in texts else usual(loader, name)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]
    return texts


class Watch:
    """A plugin: runs the chosen tests in this order, or all. Their conftest draws the same examples each time.

    What is chosen has its seconds without a fault. `failed` is the first test that did. `lines` are those of a
    traced file that each test comes by.
    """

    def __init__(self, chosen: dict[str, float] | None = None, traced: str = "") -> None:
        self._chosen, self._traced = chosen, traced
        self.seconds: Counter[str] = Counter()
        self.lines: dict[str, set[int]] = {}
        self.failed = ""

    def run(self, *arguments: str) -> bool:
        """Return whether all tests pass."""
        return pytest.main([*QUIET, *arguments], plugins=[self]) == pytest.ExitCode.OK

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self._chosen is not None:
            found = {item.nodeid: item for item in items}
            items[:] = [found[name] for name in self._chosen]
            for item in items:
                limit_s = MIN_S + TIMES_LONGER * self._chosen[item.nodeid]
                item.add_marker(pytest.mark.timeout(limit_s), append=False)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        seen = self.lines.setdefault(nodeid, set())

        def traced(frame: FrameType, event: str, _: Any) -> Any:
            if frame.f_code.co_filename != self._traced:
                return None
            seen.add(frame.f_lineno)
            return traced

        if self._traced:
            sys.settrace(traced)

    def pytest_runtest_logfinish(self) -> None:
        sys.settrace(None)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] += report.duration
        self.failed = self.failed or (report.nodeid if report.failed else "")


def survivors(
    module: str, tree: ast.Module, drawn: list[Fault], tests: list[str], stale: set[str]
) -> Iterator[str]:
    """Faults that no test noticed. `stale` modules need this one. Raises SystemExit if a test fails anyway."""
    texts = _import_from(module)
    added = AS_RECORDS if texts[module].endswith(AS_RECORDS) else ""
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        Watch().run("--collect-only", *tests)  # imports everything
    _forget({module, *stale})

    def clean() -> tuple[bool, Watch]:
        watch = Watch(traced=str(file_of(module)))
        return watch.run(*tests), watch

    passed, watch = _forked(clean, CLEAN_S) or (False, Watch())
    if not passed:
        failed = watch.failed or f"they cannot be collected, or take more than {CLEAN_S:.0f} s"
        raise SystemExit(f"The tests of {module} fail without a fault: {failed}.\nRun: pytest {' '.join(tests)}")
    for fault in drawn:
        names = [name for name, seen in watch.lines.items() if fault.at_import or seen.intersection(fault.lines)]
        wanted = {name: watch.seconds[name] for name in sorted(names, key=watch.seconds.__getitem__)}
        limit_s = MIN_S * (1 + len(wanted)) + TIMES_LONGER * sum(wanted.values())
        texts[module] = fault.text(tree) + added
        files = {name.partition("::")[0] for name in wanted}
        if not wanted or _forked(functools.partial(Watch(wanted).run, *files), limit_s):
            yield f"line {fault.lines[0]}, {len(wanted)} tests: {fault.said(tree)}"


def _forget(stale: set[str]) -> None:
    """Has each process import these modules anew, and the tests with their support."""
    for name, known in list(sys.modules.items()):
        origin = getattr(known, "__file__", None) or ""
        if name != "__main__" and (name in stale or origin.startswith(f"{ROOT}/tests/")):
            del sys.modules[name]
            parent, _, last = name.rpartition(".")
            vars(sys.modules.get(parent, ModuleType("none"))).pop(last, None)


def _forked(run: Callable[[], Any], timeout_s: float) -> Any:
    """What it returns in a process of its own, which prints nowhere; None if that died or took too long."""
    fork = multiprocessing.get_context("fork")
    reading, writing = fork.Pipe(duplex=False)

    def child() -> None:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(nowhere, number)
        writing.send(run())

    process = fork.Process(target=child)
    process.start()
    writing.close()
    try:
        with contextlib.suppress(EOFError):
            return reading.recv() if reading.poll(timeout_s) else None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()
        reading.close()


def file_of(module: str) -> Path:
    return ROOT / f"{module.replace('.', '/')}.py"


def tests_of(module: str, graph: grimp.ImportGraph) -> list[str]:
    """The files that mirror the module or what imports it, and files beside them and properties that import it."""
    importing = graph.find_modules_that_directly_import(module)
    mirrored = _mirrors(module) or [file for each in importing for file in _mirrors(each)]
    others = (*file_of(f"tests.unit.{module}").parent.glob("test_*.py"), *ROOT.glob("tests/property/test_*.py"))
    direct = [file for file in others if f"from {module} " in file.read_text()]
    return [str(file.relative_to(ROOT)) for file in (*mirrored, *direct)]


def _mirrors(module: str) -> list[Path]:
    file = file_of(f"tests.unit.{module}")
    return list(file.parent.glob(f"test_{file.stem}*.py"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module")
    parser.add_argument("tests", nargs="*", help="further test files")
    parser.add_argument("--most", type=int, default=60, help="of more faults, so many are drawn with a fixed seed")
    given = parser.parse_args()
    if not file_of(given.module).is_file():
        raise SystemExit(f"There is no module {given.module}.\nName one as in: search.certification.certify")
    graph = grimp.build_graph(*(file.parent.name for file in ROOT.glob("*/__init__.py")), cache_dir=None)
    tests = sorted({*tests_of(given.module, graph), *given.tests})
    if not tests:
        raise SystemExit(f"No test file mirrors {given.module} or what imports it.\nName some after the module.")
    tree = ast.parse(file_of(given.module).read_text())
    every = list(faults(tree))
    drawn = random.Random(SEED).sample(every, min(given.most, len(every)))
    drawn.sort(key=lambda fault: fault.lines[0])
    print(f"{len(drawn)} of {len(every)} faults, tried with {' '.join(tests)}", flush=True)
    noticed = len(drawn)
    for said in survivors(given.module, tree, drawn, tests, graph.find_downstream_modules(given.module)):
        noticed -= 1
        print(said, flush=True)
    print(f"{noticed} of {len(drawn)} faults noticed ({noticed / max(1, len(drawn)):.0%})")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
