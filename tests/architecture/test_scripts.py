"""Every script answers `--help`, and what benchmarks share is in a folder of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
SCRIPTS = sorted(
    path
    for folder in ("benchmarks", "examples")
    for path in (ROOT / folder).glob("*.py")
    if path.stem != "locustfile"
)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_answers_help_with_its_docstring(script: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, script, "--help"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    first_line = script.read_text().split('"""')[1].splitlines()[0]
    assert " ".join(first_line.split()) in " ".join(done.stdout.split())
    assert list(tmp_path.iterdir()) == []  # nothing has run


def test_modules_of_benchmarks_that_are_no_scripts_are_in_a_folder_of_their_own() -> None:
    shared = sorted((BENCHMARKS / "lib").rglob("*.py"))
    assert len(shared) > 10
    assert [path.name for path in SCRIPTS if "__main__" not in path.read_text()] == []
    assert [path.name for path in shared if "__main__" in path.read_text()] == []
    for folder in (BENCHMARKS / "lib", BENCHMARKS / "lib" / "exhaustive"):
        assert len([path for path in folder.glob("*.py") if path.stem != "__init__"]) <= 12


def test_no_file_of_benchmarks_or_examples_is_long() -> None:
    files = [path for folder in ("benchmarks", "examples") for path in (ROOT / folder).rglob("*.py")]
    assert {path.name: n for path in files if (n := len(path.read_text().splitlines())) > 350} == {}
