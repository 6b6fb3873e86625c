"""Every script of `benchmarks` and `examples` answers `--help`."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(
    path
    for folder in ("benchmarks", "examples")
    for path in (ROOT / folder).glob("*.py")
    if path.stem != "locustfile"
)
ASK_ALL = """
import runpy, sys
for script in sys.argv[1:]:
    sys.argv, sys.path[0] = [script, "--help"], script.rpartition("/")[0]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        print(f"\\nEXIT {ended.code} {script}")
"""


def test_a_script_answers_help(tmp_path: Path) -> None:
    """In one process, as most of the time is for their imports; a script that runs leaves files, or no line."""
    done = subprocess.run(
        [sys.executable, "-c", ASK_ALL, *SCRIPTS], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    ended = [line for line in done.stdout.splitlines() if line.startswith("EXIT")]
    assert ended == [f"EXIT 0 {script}" for script in SCRIPTS], done.stderr
    assert list(tmp_path.iterdir()) == []
