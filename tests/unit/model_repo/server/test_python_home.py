import os
import site
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from model_repo.server.python_home import search_path, write_python_home


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a current directory that is not the test's folder, and return it."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def seen_by(home: Path, code: str) -> str:
    """Return the output of an isolated interpreter that starts as Triton's does: by its name, found on PATH."""
    environment = {"PATH": str(home / "bin"), "VIRTUAL_ENV": str(home), "PYTHONPATH": "/nowhere"}
    return subprocess.run(
        ["python3", "-I", "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout


def test_the_current_directory_is_left_out_under_any_name(elsewhere: Any, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(elsewhere)
    (elsewhere / "below").mkdir()
    found = search_path(["", ".", str(elsewhere), str(tmp_path / "link"), "below", str(elsewhere / "below")])
    assert found.folders == (str(elsewhere / "below"),)
    assert dict(found.left_out) == {
        **dict.fromkeys(["", ".", str(elsewhere), str(tmp_path / "link")], "the current directory"),
        "below": "which depends on the current directory",
    }


def test_folders_that_everyone_may_write_to_are_left_out(elsewhere: Any, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o1777)
    found = search_path([str(tmp_path / "open"), str(tmp_path), str(tmp_path / "gone")])
    assert found.folders == (str(tmp_path),)
    assert found.in_words() == f"{tmp_path} (left out: {tmp_path / 'open'}, a folder that everyone may write to)"


def test_an_isolated_interpreter_finds_our_packages(
    elsewhere: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "paquets d'été\n'''\\"
    packages.mkdir()
    (packages / "only_here.py").write_text("VALUE = 42\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(packages)])
    home = write_python_home(tmp_path / "home")
    assert seen_by(home, "import only_here, numpy, onnxruntime; print(only_here.VALUE)") == "42\n"
    entries = [entry for entry in sys.path if entry and Path(entry).exists() and Path(entry) != elsewhere]
    found = seen_by(home, "import sys; print(ascii(sys.path))")
    assert [entry for entry in entries if ascii(entry) not in found] == []
    assert "/nowhere" not in found


def test_a_sitecustomize_that_the_python_brings_keeps_no_package_away(
    elsewhere: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian's and Ubuntu's Pythons have one, and Python runs the first that it finds."""
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "only_here.py").write_text("VALUE = 42\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "packages")])
    home = write_python_home(tmp_path / "home")
    (site_packages,) = home.glob("lib/*/site-packages")
    (site_packages / "sitecustomize.py").write_text("")
    assert seen_by(home, "import only_here; print(only_here.VALUE)") == "42\n"


def test_packages_installed_as_editable_are_found(
    elsewhere: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "there.py").write_text("VALUE = 43\n")
    (packages / "hook.pth").write_text(f"import sys; sys.modules['hooked'] = sys\n{elsewhere}\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(packages), str(elsewhere)])
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(packages)])
    home = write_python_home(tmp_path / "home")
    assert seen_by(home, "import hooked, there; print(there.VALUE)") == "43\n"
    assert str(elsewhere) not in seen_by(home, "import sys; print(sys.path)")


def test_it_is_the_same_python(tmp_path: Path) -> None:
    home = write_python_home(write_python_home(tmp_path / "home"))  # again, over the existing files
    version = seen_by(home, "import sys; print(sys.version, sys.prefix)")
    assert version == f"{sys.version} {home}\n"
    assert os.access(home / "bin" / "python3", os.X_OK)
