"""Tests that a second run in a directory is refused while the first lives, but not after it was killed."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from loadgen.errors import BadInput
from optimizer.run.run_directory import LOCK_FILE, locked, make_directory

OWNER = """
import sys, time
from pathlib import Path
from optimizer.run.run_directory import locked
with locked(Path(sys.argv[1])):
    print("mine", flush=True)
    time.sleep(600)
"""


def test_a_living_owner_is_named_and_a_dead_one_is_not_waited_for(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout.readline() == "mine\n"
        with (
            pytest.raises(BadInput, match=rf"Another run is using .*\(process {owner.pid}\)") as caught,
            locked(tmp_path),
        ):
            pytest.fail("it was not refused")
        assert "--output" in caught.value.fix
        owner.kill()
    with locked(tmp_path):
        assert (tmp_path / LOCK_FILE).read_text() == f"{os.getpid()}\n"


@pytest.mark.parametrize(("of_model", "of_folder"), [(0o600, 0o700), (0o644, 0o755)])
def test_the_run_of_a_private_model_is_private(tmp_path: Path, of_model: int, of_folder: int) -> None:
    model = tmp_path / "m.onnx"
    model.touch(of_model)
    before = os.umask(0o022)
    try:
        make_directory(tmp_path / "runs" / "m", resume=False, model=model)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "runs" / "m").stat().st_mode) == of_folder


@pytest.mark.parametrize("private", ["repository", "repository/scorer"])
def test_the_run_of_a_model_in_a_private_folder_is_private(tmp_path: Path, private: str) -> None:
    (tmp_path / "repository" / "scorer").mkdir(parents=True)
    for folder in ("repository", "repository/scorer"):
        (tmp_path / folder).chmod(0o700 if folder == private else 0o755)
    make_directory(tmp_path / "run", resume=False, model=tmp_path / "repository" / "scorer")
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700
