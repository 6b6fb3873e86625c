"""Modules have a size that one can read, and import each other in no circle; `lint-imports` checks the arrows."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("deploy", "loadgen", "model_repo", "optimizer", "search", "tritune")
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
}
MAX_LINES = 350


def imports(name: str) -> Iterator[str]:
    """Every module of ours that a module imports, at the top, for types or inside a function."""
    for node in ast.walk(ast.parse(FILES[name].read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in FILES else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_a_module_has_350_lines_at_most() -> None:
    others = [path for folder in ("benchmarks", "examples") for path in (ROOT / folder).rglob("*.py")]
    lines = {path: len(path.read_text().splitlines()) for path in (*FILES.values(), *others)}
    assert {path: count for path, count in lines.items() if count > MAX_LINES} == {}


def test_packages_keep_their_budgets_of_lines() -> None:
    rows = re.findall(r"\| `(\w+)` \| ([\d,]+) \|", (ROOT / "CONTRIBUTING.md").read_text())
    budgets = {package: int(lines.replace(",", "")) for package, lines in rows}
    assert budgets.keys() == set(PACKAGES)
    lines = dict.fromkeys(PACKAGES, 0)
    for name, path in FILES.items():
        lines[name.partition(".")[0]] += len(path.read_text().splitlines())
    assert {package: count for package, count in lines.items() if count > budgets[package]} == {}


def test_a_constant_of_the_search_has_one_meaning() -> None:
    places: dict[str, list[str]] = {}
    for module in sorted(FILES):
        if module.startswith(("search.", "loadgen.statistics.")):
            assigned = (node for node in ast.parse(FILES[module].read_text()).body if isinstance(node, ast.Assign))
            nodes = (one for node in assigned for target in node.targets for one in ast.walk(target))
            for name in {one.id.strip("_") for one in nodes if isinstance(one, ast.Name) and one.id.isupper()}:
                places.setdefault(name, []).append(module)
    defined = {name: modules for name, modules in places.items() if len(modules) > 1}
    assert defined == {}


def test_no_circle_whichever_way_modules_import_each_other() -> None:
    left = {name: set(imports(name)) & FILES.keys() - {name} for name in FILES}
    assert "loadgen.distributed.master" in left["loadgen.command.run"]  # inside a function
    while free := {name for name, needed in left.items() if not needed & left.keys()}:
        left = {name: needed for name, needed in left.items() if name not in free}
    assert left == {}
