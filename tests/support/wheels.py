"""The wheel of this checkout, built from a copy: setuptools would add what an earlier build left in build/."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LEFT_OUT = shutil.ignore_patterns(
    ".*", "build", "dist", "runs", "tests", "benchmarks", "docs", "*.egg-info", "__pycache__"
)


def built_wheel(folder: Path) -> Path:
    """The path of the wheel; `folder` gets it, and the copy."""
    source = folder / "source"
    shutil.copytree(ROOT, source, ignore=LEFT_OUT)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, source]
    subprocess.run(command, check=True, capture_output=True, timeout=250)
    (wheel,) = folder.glob("tritune-*.whl")
    return wheel
