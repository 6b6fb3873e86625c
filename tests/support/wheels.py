"""Build the wheel of this checkout from a copy: setuptools would add files of an earlier build from build/."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LEFT_OUT = shutil.ignore_patterns(
    ".*", "build", "dist", "runs", "tests", "benchmarks", "docs", "*.egg-info", "__pycache__"
)


def built_wheel(folder: Path) -> Path:
    """Return the path of the wheel; writes it, and the copy, to `folder`."""
    source = folder / "source"
    shutil.copytree(ROOT, source, ignore=LEFT_OUT)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(source)]
    subprocess.run(command, check=True, capture_output=True, timeout=250)
    (wheel,) = folder.glob("tritune-*.whl")
    return wheel
