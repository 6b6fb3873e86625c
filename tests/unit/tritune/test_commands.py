"""A user's own module of the name of one of our packages is named, or does not matter."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import tritune

ROOT = Path(__file__).parents[3]


def ended(command: str, folder: Path, *path: Path) -> subprocess.CompletedProcess[str]:
    """`command --help` as its console script runs it in `folder`, with `path` on PYTHONPATH."""
    return subprocess.run(
        [sys.executable, "-P", "-c", f"from tritune.commands import {command}; {command}()", "--help"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*path, ROOT)))},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("command", ["optimize", "loadtest"])
@pytest.mark.parametrize("file", ["optimizer.py", "search/__init__.py", "loadgen.py"])
def test_a_foreign_module_on_the_path_is_named(command: str, file: str, tmp_path: Path) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("raise SystemExit('never imported')\n")
    done = ended(command, ROOT, tmp_path)
    assert done.returncode == 2
    what, fix = done.stderr.splitlines()
    assert str(tmp_path / file) in what
    assert "PYTHONPATH" in fix


@pytest.mark.parametrize("command", ["optimize", "loadtest"])
def test_one_in_the_current_folder_does_not_matter(command: str, tmp_path: Path) -> None:
    (tmp_path / "optimizer.py").write_text("raise SystemExit('never imported')\n")
    (tmp_path / "search").mkdir()
    done = ended(command, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Exit codes" in done.stdout


def test_a_call_from_beside_a_foreign_module_is_an_import_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "search.py").write_text("raise SystemExit('never imported')\n")
    script = tmp_path / "mine.py"
    script.write_text(
        "import tritune\n"
        "try:\n    tritune.open_run('runs')\n"
        "except ImportError as error:\n    print(error.exit_code, error.what)\n"
    )
    done = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("2 ")
    assert str(tmp_path / "search.py") in done.stdout


def test_a_clone_called_tritune_hides_nothing_from_the_folder_that_holds_it(tmp_path: Path) -> None:
    """Python finds a folder without `__init__.py` as a package, unless a real one is on the path as well."""
    (tmp_path / "tritune").mkdir()
    without = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    code = "import tritune; tritune.optimize"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=without, check=True)


def test_its_error_can_be_pickled() -> None:
    error = tritune.ForeignPackage("search", "/there/search.py")
    again = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (str(again), again.what, again.fix) == (str(error), error.what, error.fix)
