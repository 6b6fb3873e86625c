"""The generated references say what the code says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import references
from references import DOCS, FILES


@pytest.mark.parametrize("name", FILES)
def test_reference_is_up_to_date(name: str, tmp_path: Path) -> None:
    # A process of its own: the width of a terminal is read once.
    environment = {**os.environ, "TERMINAL_WIDTH": "100", "COLUMNS": "100"}
    rendered = subprocess.run(
        [sys.executable, references.__file__, name],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=environment,
        cwd=DOCS.parent,
    ).stdout
    if os.environ.get("UPDATE_GOLDENS"):
        (DOCS / name).write_text(rendered)
    assert (DOCS / name).read_text() == rendered, "run with UPDATE_GOLDENS=1"
    assert not os.environ.get("UPDATE_GOLDENS"), "rewritten; run again without UPDATE_GOLDENS"
