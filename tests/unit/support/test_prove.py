"""Proofs are kept one by one, belong to the code they were made of, and are not made twice."""

import importlib.util
import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

PROVE = Path(__file__).parents[2] / "prove"


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, PROVE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


prove, search_grid, mutants = loaded("prove"), loaded("search_grid"), loaded("mutants")


def unit(name: str, code: str = "print('all is well')") -> Any:
    return prove.Unit(name=name, command=(sys.executable, "-c", code), about=("loadgen.spec.units",), files=())


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "proofs.jsonl"


def test_what_was_proved_is_kept_and_not_run_again(
    table: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    once = unit("one", f"open({str(tmp_path / 'ran')!r}, 'a').write('x')")
    units = (once, unit("two"))
    assert prove.main(["--check"], units, table) == 1
    assert prove.main(["one"], units, table) == 0
    assert prove.main(["--check"], units, table) == 1  # the table is not complete
    assert prove.main([], units, table) == 0
    assert prove.main(["--check"], units, table) == 0
    assert (tmp_path / "ran").read_text() == "x"
    lines = [json.loads(line) for line in table.read_text().splitlines()]
    assert [(line["unit"], line["said"]) for line in lines] == [("one", ""), ("two", "all is well")]


def test_a_failure_leaves_no_line_and_the_others_go_on(table: Any, capsys: pytest.CaptureFixture[str]) -> None:
    units = (unit("one", "raise SystemExit('one thing is wrong')"), unit("two"))
    assert prove.main([], units, table) == 1
    assert set(prove.proofs(table)) == {"two"}
    assert "one thing is wrong" in capsys.readouterr().out


def test_a_line_belongs_to_the_code_and_what_it_imports(tmp_path: Path, table: Any) -> None:
    (tmp_path / "search").mkdir()
    for name in ("top", "below"):
        (tmp_path / "search" / f"{name}.py").write_text("x = 1\n")

    def needs(module: Any) -> list[Any]:
        return ["search.below"]

    one = replace(unit("one"), about=("search.top",))
    before = prove.checksum(one, needs, tmp_path)
    assert prove.prove(one, before, table, tmp_path)
    assert prove.stale([one], {"one": before}, table) == []
    (tmp_path / "search" / "top.py").write_text("")
    moved = '"""Both."""\n\nimport math\n\nx = 1  # as before\n"""What it is."""\n'
    (tmp_path / "search" / "below.py").write_text(moved)
    assert prove.checksum(one, needs, tmp_path) == before
    (tmp_path / "search" / "below.py").write_text("x = 2\n")
    now = prove.checksum(one, needs, tmp_path)
    assert prove.stale([one], {"one": now}, table) == [one]


PLAIN = """
class Kept:
    limit: int = 3

def helper(given, *rest, known=1, **named):
    found = given
    class Local:
        field: int
    return lambda one: found
"""
TYPED = """
from typing import Any

class Kept:
    limit: int = 3

def helper(given: int, *rest: str, known: int = 1, **named: Any) -> "Any":
    '''Now with types.'''
    other: float
    found: int = given
    class Local:
        field: int
    return lambda one: found
"""


def checksum_of(file: str, source: str, root: Path) -> str:
    """The checksum of a unit that consists of one file with this source."""
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    return prove.checksum(
        prove.Unit(name="one", command=("true",), about=(), files=(file,)), lambda name: (), root
    )


def test_types_of_functions_count_in_the_code_but_not_in_tests(tmp_path: Path) -> None:
    test, code = "tests/unit/test_it.py", "loadgen/it.py"
    assert checksum_of(test, TYPED, tmp_path) == checksum_of(test, PLAIN, tmp_path)
    assert checksum_of(code, TYPED, tmp_path) != checksum_of(code, PLAIN, tmp_path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("limit: int", "limit: float"),
        ("field: int", "field: float"),
        ("= given", "= rest"),
        ("known=1", "known=2"),
        ("given, ", "given, /, "),
    ],
)
def test_what_a_test_does_counts(old: str, new: str, tmp_path: Path) -> None:
    assert old in PLAIN
    test = "tests/unit/test_it.py"
    assert checksum_of(test, PLAIN.replace(old, new), tmp_path) != checksum_of(test, PLAIN, tmp_path)


def test_a_unit_that_is_gone_leaves_the_table_wrong(table: Any) -> None:
    prove.main([], (unit("one"), unit("two")), table)
    assert prove.main(["--check"], (unit("one"),), table) == 1


def test_every_unit_is_about_modules_and_files_that_exist() -> None:
    needs = prove.imported_by()
    for each in prove.UNITS:
        assert all(prove._source(prove.ROOT, name) for name in each.about)
        assert each.about or each.files
        assert all(len(set(needs(name))) > 3 for name in each.about)
        assert prove.checksum(each, needs)


FAULT = SimpleNamespace(number=0, function="f", said="`f`: `x < 1` → `x <= 1`")


def test_a_fault_that_nothing_noticed_is_in_its_modules_table_and_explained_in_its_modules_section() -> None:
    found = SimpleNamespace(number=1, function="", said="`-`: `A = 1` → `A = 2`")
    text = mutants.table("loadgen.spec.units", [FAULT, found], [FAULT, found], {0: "survived", 1: "noticed"})
    assert "| f | 1 | 1 | 0 |" in text
    assert "| **all** | 2 | 2 | 1 |" in text
    assert FAULT.said in text
    assert found.said not in text
    why = f"# Survivors\n\n## loadgen.spec.units\n\nThe same.\n\n- {FAULT.said}\n\n## loadgen.finite\n\n- other\n"
    assert mutants.explained("loadgen.spec.units", why) == {FAULT.said}
    assert mutants.explained("loadgen.finite", why) == {"other"}
    assert mutants.explained("loadgen", why) == set()


def test_what_became_of_a_fault_belongs_to_its_source_and_to_the_test_that_noticed(tmp_path: Path) -> None:
    noticing = tmp_path / "test_noticing.py"
    noticing.write_text("A = 1\ndef test_this():\n    assert A\ndef test_that():\n    assert A == 1\n")

    def kept(source: str = "source", tests: str = "tests") -> Any:
        mutants._checksum_of_test.cache_clear()
        found = mutants.Kept(tmp_path / "kept.jsonl", source, tests)
        found.read()
        return found

    kept().add(3, "noticed", f"{noticing}::test_this[1]")
    kept().add(4, "survived", "")
    assert kept().fates == {3: "noticed", 4: "survived"}
    assert kept(source="changed").fates == {}
    assert kept(tests="more").fates == {3: "noticed"}  # a new test may notice what none did
    text = noticing.read_text()
    noticing.write_text(text.replace("assert A == 1", "assert A == 1.0"))  # of another test
    assert 3 in kept().fates
    for change in (("    assert A\n", "    assert True\n"), ("A = 1\n", "A = 2\n"), ("test_this", "test_these")):
        noticing.write_text(text.replace(*change, 1))
        assert 3 not in kept().fates
        assert kept().by[3] == f"{noticing}::test_this[1]"


def test_a_process_that_goes_on_or_dies_says_so(tmp_path: Path) -> None:
    output = tmp_path / "output.txt"
    assert mutants._forked(lambda: b"all is well", 60.0, output) == b"all is well"
    assert mutants._forked(lambda: os.kill(os.getpid(), signal.SIGKILL), 60.0, output) == b""
    assert mutants._forked(lambda: time.sleep(600), 0.1, output) is None


@pytest.mark.parametrize("table", sorted(PROVE.glob("tables/mutants-*.md")), ids=lambda path: path.stem)
def test_each_committed_table_is_complete_and_its_survivors_are_explained(table: Path) -> None:
    module = table.stem.removeprefix("mutants-")
    text = table.read_text()
    survivors = {line[2:] for line in text.splitlines() if line.startswith("- ")}
    _, _, tried, noticed = (cell.strip() for cell in text.split("| **all**")[1].splitlines()[0].split("|")[:4])
    assert int(noticed) >= mutants.LEAST_NOTICED * int(tried)
    assert survivors <= mutants.explained(module, mutants.SURVIVORS.read_text())
    assert f"mutants {module}" in {unit.name for unit in prove.UNITS}


def run(number: int, promised: float | None, chosen: float | None = 100.0) -> SimpleNamespace:
    return SimpleNamespace(number=number, promised=promised, chosen=chosen)


def test_promises_above_the_capacity_are_counted() -> None:
    assert search_grid.most_above(20) == 4  # five or more of twenty: 0.26 % of draws
    fine = [run(number, 99.0) for number in range(16)]
    assert search_grid.problems_of([*fine, *(run(number, 101.0) for number in range(4))]) == []
    assert search_grid.problems_of([*fine, *(run(number, 101.0) for number in range(5))])
    assert search_grid.problems_of([*fine, run(20, 104.0)])
    assert search_grid.problems_of([*fine, run(20, None, None)])
