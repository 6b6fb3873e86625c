"""The house stays as it is: small folders and modules, no circles, types imported at the top, known words."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("deploy", "loadgen", "model_repo", "optimizer", "search")
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
    if path.name != "__init__.py"
}
MOST_MODULES, MOST_LINES, LEAST_LINES = 12, 350, 60
SLOW = {
    "jinja2",
    "locust",
    "gevent",
    "numpy",
    "onnx",
    "optuna",
    "psutil",
    "pydantic",
    "rich",
    "tritonclient",
    "torch",
    "typer",
    "yaml",
}
"""Libraries whose import takes so long that types alone are no reason for it."""

INSIDE_TRITON = "model_repo.runtime."
"""Each module stands alone there: it starts as fast as it can, and may leave all types to the type checker."""

SMALL = {
    "deploy.errors": "what all of deploy raises",
    "model_repo.runtime.probe_model": "runs inside Triton",
    "model_repo.runtime.tritune_gpu.engine": "the protocol of both engines inside Triton",
    "model_repo.runtime.tritune_gpu.host_memory": "stays apart inside Triton",
}
OLD_NAMES = (
    "Attempts", "Crew", "DemandRecord", "Forecast", "Guided", "LapLoop", "Laps", "Ledger", "LimitRecord",
    "NeighboursRecord", "OrderRecord", "Sampling", "ShareResult", "SharedStudy", "Standing", "Steadiness", "Tally",
    "carried_out", "carry_out", "find_out", "first_wrong_node", "joint_answer", "judge_tally", "made_up_for",
    "make_up", "outraced", "seen_before", "seen_in_both", "servers_fault", "short_run", "slow_down",
    "tried_at_rate", "until_late", "warden", "worth_verifying",
)  # fmt: skip
"""Words of our own, where the field has others."""

OLD_DEFINITIONS = {
    "Alone", "Bursts", "Certified", "Demand", "Finding", "Kind", "Neighbours", "Nobody", "Order", "Promise",
    "Seen", "Share", "Stalls", "agenda", "confirmed", "deciding", "evaluated", "gathered", "pace",
    "predicted_trial", "tightest", "verified", "watched", "within_memory",
}  # fmt: skip
"""Classes and functions that have the field's names now. In a sentence these words are fine."""


def imports(name: str) -> Iterator[str]:
    """Every module of ours that a module imports, at the top, for types or inside a function."""
    for node in ast.walk(ast.parse(FILES[name].read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if full in FILES:
                    yield full
                elif node.module in FILES:
                    yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in FILES)


GRAPH = {name: set(imports(name)) - {name} for name in FILES}


def test_a_folder_holds_twelve_modules_at_most() -> None:
    folders = defaultdict(list)
    for name in FILES:
        folders[name.rpartition(".")[0]].append(name)
    assert len(folders) > 30
    assert not {folder: len(names) for folder, names in folders.items() if len(names) > MOST_MODULES}


def test_a_module_has_350_lines_at_most() -> None:
    lines = {name: len(path.read_text().splitlines()) for name, path in FILES.items()}
    assert not {name: count for name, count in lines.items() if count > MOST_LINES}


def test_a_small_module_has_two_users_or_a_process_of_its_own() -> None:
    users = defaultdict(set)
    for name, needed in GRAPH.items():
        for other in needed:
            users[other].add(name)
    small = {
        name
        for name, path in FILES.items()
        if len(path.read_text().splitlines()) < LEAST_LINES
        and len(users[name]) < 2
        and "__main__" not in path.read_text()
    }
    assert small <= SMALL.keys()


def test_no_circle_whichever_way_modules_import_each_other() -> None:
    left = {name: set(needed) for name, needed in GRAPH.items()}
    while free := {name for name, needed in left.items() if not needed & left.keys()}:
        left = {name: needed for name, needed in left.items() if name not in free}
    assert not left


def test_the_search_for_circles_sees_imports_for_types_and_inside_functions() -> None:
    assert "loadgen.distributed.master" in GRAPH["loadgen.command.run"]  # inside a function
    assert sum(map(len, GRAPH.values())) > 1000


@pytest.mark.parametrize("name", sorted(FILES))
def test_types_alone_are_imported_from_slow_libraries_only(name: str) -> None:
    blocks = [
        node
        for node in ast.walk(ast.parse(FILES[name].read_text()))
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    tops = {
        (one.module if isinstance(one, ast.ImportFrom) else one.names[0].name).partition(".")[0]
        for block in blocks
        for one in block.body
        if isinstance(one, ast.Import | ast.ImportFrom)
    }
    assert name.startswith(INSIDE_TRITON) or tops <= SLOW


@pytest.mark.parametrize("old", OLD_NAMES)
def test_words_of_our_own_do_not_come_back(old: str) -> None:
    found = [name for name, path in FILES.items() if re.search(rf"\b{old}\b", path.read_text())]
    assert not found


def test_classes_and_functions_keep_the_names_of_the_field() -> None:
    defined = {
        node.name
        for path in FILES.values()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert len(defined) > 1000
    assert not defined & OLD_DEFINITIONS
