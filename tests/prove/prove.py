"""What takes too long for every change: proved by hand with `make prove`, and checked in CI with `make proved`.

    python tests/prove/prove.py [--check] [UNIT ...]

A unit is a command that succeeds. Each that does leaves a line in `proofs.jsonl`, with a checksum of the modules
that it is about and all they import. As many run side by side as there are processors. A run that is ended goes on
where it was: units with a line that belongs to the code are not run again. `--check` runs nothing and fails if a
line is missing or belongs to other code.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("proofs.jsonl")
PACKAGES = ("deploy", "loadgen", "model_repo", "optimizer", "search")
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
SEARCHES_OF_A_KIND = 20
WRITING = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """`about` are the modules that it proves something of; `files` are what it consists of itself."""

    name: str
    command: tuple[str, ...]
    about: tuple[str, ...]
    files: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


def fuzzing(name: str, about: tuple[str, ...], seconds: int) -> Unit:
    """A file of fuzz targets, each for so many seconds."""
    file = f"tests/fuzz/test_{name}.py"
    seconds_of = {"TRITUNE_FUZZ_S": str(seconds)}
    return Unit(name=f"fuzz {name}", command=(*PYTEST, file), about=about, files=(file,), environment=seconds_of)


def searches(kind: str) -> Unit:
    """Whole searches in virtual time on drawn servers of a kind; their table is committed, too."""
    script = "tests/prove/search_grid.py"
    return Unit(
        name=f"searches {kind}",
        command=(sys.executable, script, kind, str(SEARCHES_OF_A_KIND)),
        about=("search.study.run", "search.certification.certify"),
        files=(script, *(f"tests/support/{name}.py" for name in ("search_runs", "drawn_servers", "true_rates"))),
    )


def mutants(module: str, *tests: str, most: int = 120, options: tuple[str, ...] = ()) -> Unit:
    """Faults put into a module. The line belongs to the module itself and to the tests that notice them.

    `tests` are names of the folder that mirrors the module's, `folder/name` of one beside it, or `property/name`;
    without any it is the one of the module's name.
    """
    package, folder, name = module.split(".")
    files = tuple(_test_file(package, folder, test) for test in tests or (name,))
    command = (sys.executable, "tests/prove/mutants.py", module, "--most", str(most), *options, *files)
    source = f"{module.replace('.', '/')}.py"
    tool = ("tests/prove/mutants.py", "tests/prove/mutations.py")
    return Unit(name=f"mutants {module}", command=command, about=(), files=(source, *tool, *files))


def _test_file(package: str, folder: str, test: str) -> str:
    parent, _, name = test.rpartition("/")
    beside = "property" if parent == "property" else f"unit/{package}/{parent or folder}"
    return f"tests/{beside}/test_{name}.py"


HTTP = ("clients/http_answers", "clients/http_connections", "clients/http1", "transport/http1_response")
GRPC = (
    "clients/grpc",
    "clients/grpc_answers",
    "clients/grpc_connections",
    "transport/http2",
    "transport/http2_fast_path",
)
UNITS = (
    fuzzing("fuzz_wires", ("loadgen.clients.triton",), 120),
    fuzzing("onnx_reader", ("optimizer.batching.dynamic_batch", "optimizer.limited_call"), 120),
    fuzzing("run_directories", ("optimizer.command.finished_runs", "optimizer.run_file"), 60),
    *(searches(kind) for kind in ("cnn", "transformer", "tight", "cpu", "drawn")),
    mutants("loadgen.statistics.dependence", "bursts"),
    mutants("loadgen.statistics.steady_state"),
    mutants("loadgen.statistics.sequential"),
    mutants("loadgen.statistics.slo_test", "slo_test", "several", "property/certify_properties"),
    mutants("loadgen.statistics.confirm", "confirm", "confirm_outlook", "served", most=60),
    mutants("loadgen.statistics.capacity", most=60),
    mutants("search.simulator.batcher", "server", most=80, options=("--uncompiled",)),
    mutants("search.simulator.server", most=80),
    mutants("loadgen.sending.send_loop", "send_times", "send_loop"),
    mutants("loadgen.clients.http1", *HTTP),
    mutants("loadgen.transport.http1_body", *HTTP, "property/answers", most=60),
    mutants("loadgen.clients.grpc", *GRPC),
    mutants("loadgen.transport.http2", *GRPC, most=60),
    mutants("loadgen.transport.http2_sending", *GRPC, most=60),
    mutants("loadgen.transport.hpack"),
    mutants("loadgen.transport.http1_response", "http1_response", "clients/http_answers", most=60),
    mutants("loadgen.transport.http2_frames", "header_blocks", "http2_frames", "http2", most=60),
    mutants(
        "loadgen.transport.http2_fast_path", "http2_fast_path", "prepared_call", "clients/grpc_answers", most=60
    ),
    mutants("loadgen.transport.http2_call", "http2_call", "http2", most=60),
    mutants("loadgen.transport.sockets", most=60),
    mutants("search.cost.cost", "cost", "property/cost"),
    mutants("search.certification.certifier"),
    mutants("search.certification.first_rate"),
    mutants("search.records.confirmations"),
    mutants("search.certification.certify", "certify", "second_confirmation"),
)


@cache
def imported_by() -> Callable[[str], Iterable[str]]:
    """Returns which modules of ours a module needs, through any number of imports."""
    import grimp

    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True)
    upstream: Callable[[str], Iterable[str]] = graph.find_upstream_modules
    return upstream


def checksum(unit: Unit, needs: Callable[[str], Iterable[str]], root: Path = ROOT) -> str:
    """Of the command, and of what the modules that it is about, all they import and its own files define.

    Names, comments, docstrings and imports do not count: code that only moves to another module has not changed.
    Nor do, in `tests/`, the types of functions.
    """
    modules = {name for about in unit.about for name in (about, *needs(about))}
    defined = {it for name in unit.files for it in _defined((root / name).read_bytes(), name.startswith("tests/"))}
    sources = (found for name in modules for found in (_source(root, name),) if found is not None)
    defined |= {it for path in sources for it in _defined(path.read_bytes(), False)}
    said = json.dumps([unit.command[1:], dict(unit.environment), sorted(defined)])
    return hashlib.sha256(said.encode()).hexdigest()[:16]


class _WithoutTypes(ast.NodeTransformer):
    """Removes the types of parameters, of returns and of variables in functions. Fields of classes keep theirs."""

    def __init__(self) -> None:
        self._in_function = False

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self._inside(node, True)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.returns = None
        return self._inside(node, True)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self._inside(node, False)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        if not self._in_function:
            return self.generic_visit(node)
        if node.value is None:
            return None
        return self.generic_visit(ast.Assign(targets=[node.target], value=node.value, lineno=node.lineno))

    def _inside(self, node: ast.AST, is_function: bool) -> ast.AST:
        outside, self._in_function = self._in_function, is_function
        self.generic_visit(node)
        self._in_function = outside
        return node


@cache
def _defined(source: bytes, is_test: bool) -> frozenset[str]:
    """A checksum of each statement of a module but its imports, without comments and docstrings.

    Of a test without the types of its functions, too: they change nothing that it asserts.
    """
    tree = _WithoutTypes().visit(ast.parse(source)) if is_test else ast.parse(source)
    found = set()
    for statement in tree.body:
        if not isinstance(statement, ast.Import | ast.ImportFrom):
            for node in ast.walk(statement):
                if isinstance(body := getattr(node, "body", None), list):
                    node.body = [one for one in body if not _is_text(one)]  # type: ignore[attr-defined]
            if not _is_text(statement):
                found.add(hashlib.sha256(ast.dump(statement).encode()).hexdigest())
    return frozenset(found)


def _is_text(statement: ast.AST) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _source(root: Path, module: str) -> Path | None:
    path = root.joinpath(*module.split("."))
    candidates = (path.with_suffix(".py"), path / "__init__.py")
    return next((one for one in candidates if one.is_file()), None)


def proofs(table: Path) -> dict[str, dict[str, object]]:
    """The lines of the table by unit."""
    lines = table.read_text().splitlines() if table.exists() else []
    return {record["unit"]: record for record in map(json.loads, lines)}


def stale(units: Iterable[Unit], code: Mapping[str, str], table: Path) -> list[Unit]:
    """The units without a line that belongs to this code."""
    kept = proofs(table)
    return [unit for unit in units if kept.get(unit.name, {}).get("code") != code[unit.name]]


def prove(unit: Unit, code: str, table: Path, root: Path = ROOT) -> bool:
    """Run it; if it succeeds, keep its line. Returns whether it did."""
    began = time.monotonic()
    done = subprocess.run(
        unit.command, cwd=root, env={**os.environ, **unit.environment}, capture_output=True, text=True, check=False
    )
    last = ([*done.stdout.strip().splitlines(), ""] if done.returncode == 0 else [""])[-2:][0]
    seconds = round(time.monotonic() - began)
    if done.returncode:
        print(f"FAILED {unit.name} after {seconds} s\n{done.stdout[-6000:]}{done.stderr[-2000:]}", flush=True)
        return False
    with WRITING:
        kept = {**proofs(table), unit.name: {"unit": unit.name, "code": code, "seconds": seconds, "said": last}}
        draft = table.with_suffix(".draft")
        draft.write_text("".join(json.dumps(kept[name]) + "\n" for name in sorted(kept)))
        draft.replace(table)
    print(f"proved {unit.name} in {seconds} s: {last}", flush=True)
    return True


def main(arguments: list[str] | None = None, units: tuple[Unit, ...] = UNITS, table: Path = TABLE) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("unit", nargs="*", help="names of units; all where none is given")
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args(arguments)
    unknown = set(given.unit) - {unit.name for unit in units}
    if unknown:
        parser.error(f"no unit is called {', '.join(sorted(unknown))}")
    needs = imported_by()
    code = {unit.name: checksum(unit, needs) for unit in units}
    wanted = [unit for unit in stale(units, code, table) if not given.unit or unit.name in given.unit]
    if given.check:
        gone = sorted(proofs(table).keys() - code.keys())
        for name in (*(unit.name for unit in wanted), *gone):
            print(f"{name}: {'no longer a unit' if name in gone else 'not proved for this code; run make prove'}")
        return 1 if wanted or gone else 0
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        proved = list(pool.map(lambda unit: prove(unit, code[unit.name], table), wanted))  # all, whatever fails
    return 0 if all(proved) else 1


if __name__ == "__main__":
    sys.exit(main())
