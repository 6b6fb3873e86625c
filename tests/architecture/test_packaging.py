"""The wheel holds what the commands need, and the commands start without the heavy libraries."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from wheels import built_wheel

ROOT = Path(__file__).parents[2]
PACKAGES = {"deploy", "loadgen", "model_repo", "optimizer", "search", "tritune"}
HEAVY = (
    "onnx",
    "onnxruntime",
    "optuna",
    "locust",
    "gevent",
    "grpc",
    "tritonclient",
    "numpy",
    "torch",
    "sqlalchemy",
)


def test_the_wheel_holds_every_module_and_data_file_of_the_packages_and_nothing_else(tmp_path: Path) -> None:
    command = ["git", "ls-files", *PACKAGES]
    tracked = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    held = zipfile.ZipFile(built_wheel(tmp_path)).namelist()
    assert {name for name in tracked if (ROOT / name).exists()} - set(held) == set()
    assert {name.split("/")[0] for name in held if not name.startswith("tritune-")} == PACKAGES


@pytest.mark.parametrize("command", ["optimize", "loadtest"])
def test_help_imports_no_heavy_library(command: str) -> None:
    script = (
        "import sys\n"
        f"sys.argv = ['{command}', '--help']\n"
        f"from tritune.commands import {command}\n"
        f"try:\n    {command}()\nexcept SystemExit:\n    pass\n"
        f"print('HEAVY', [name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60, cwd=ROOT
    )
    assert "Exit codes" in done.stdout
    assert done.stdout.splitlines()[-1] == "HEAVY []"


def test_everything_is_printed_with_the_console_that_shows_escapes() -> None:
    """Rich's own console would let text of strangers steer the terminal."""
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            made = re.findall(r"(?<!Safe)\bConsole\(", path.read_text())
            assert not made or path == ROOT / "loadgen" / "console.py", path
