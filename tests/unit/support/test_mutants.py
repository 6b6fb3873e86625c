"""The tool that puts faults into a module: on a small tree, it prints what a test misses, and no more."""

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "support" / "mutants.py"
MODULE = """
LIMIT = 3

def price(count: int) -> int:
    if count > LIMIT:
        raise ValueError(f"at most {LIMIT + 1}")
    return 10 * count

def unused(count):
    return count + 20
"""
TEST = """
import pytest
from shop.till.prices import price

def test_price():
    assert [price(count) for count in (0, 1, 3)] == [0, 10, 30]
    with pytest.raises(ValueError):
        price(4)
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    files = {
        "shop/__init__.py": "",
        "shop/till/__init__.py": "",
        "shop/till/prices.py": MODULE,
        "tests/unit/shop/till/test_prices.py": TEST,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def tried(tree: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, TOOL, *arguments], cwd=tree, capture_output=True, text=True, check=False
    )


def test_faults_that_no_test_notices_are_printed_and_nothing_is_kept(tree: Path) -> None:
    done = tried(tree, "shop.till.prices")
    assert done.returncode == 0, done.stderr
    survivors = [line for line in done.stdout.splitlines() if " -> " in line]
    assert [line.split(",")[0] for line in survivors] == ["line 10"] * 2
    assert survivors[0].endswith("return count + 20 -> return count - 20")
    assert [path.name for path in (tree / "shop" / "till").glob("*.py")] == ["__init__.py", "prices.py"]
    assert (tree / "shop" / "till" / "prices.py").read_text() == MODULE
    few = tried(tree, "shop.till.prices", "--most", "1")
    assert few.stdout.splitlines()[-1].split()[2] == "1"


def test_an_unknown_module_and_tests_that_fail_anyway_are_two_lines(tree: Path) -> None:
    (tree / "tests/unit/shop/till/test_prices.py").write_text(TEST.replace("30", "31"))
    for module in ("shop.till.costs", "shop.till.prices"):
        done = tried(tree, module)
        assert (done.returncode, len(done.stderr.splitlines())) == (1, 2)
