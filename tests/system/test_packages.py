"""Where models inside a real Triton import from: what we run with, and nothing that others may have put there."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import cnn_engine
from infer import infer

from model_repo.server.options import ServerOptions
from model_repo.server.triton import serve
from model_repo.spec import ServingConfig

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
OTHERS = ("numpy.py", "onnxruntime.py", "triton_python_backend_utils.py", "sitecustomize.py", "json.py")

PROBE = """
import sys
from pathlib import Path
from model_repo.errors import ServerError
from model_repo.server.options import ServerOptions
from model_repo.server.triton import check_runs_models

try:
    check_runs_models(ServerOptions(run_dir=Path(sys.argv[1])))
except ServerError as error:
    print(error)
"""


def test_nothing_is_imported_from_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    here.mkdir()
    for name in OTHERS:
        (here / name).write_text("import pathlib\npathlib.Path(__file__).with_name('ran').touch()\n")
    monkeypatch.chdir(here)
    with serve(ServerOptions(run_dir=tmp_path / "run")) as server:
        server.load(ServingConfig(engine=cnn_engine(tmp_path), max_batch_size=2))
        outputs = infer(server.endpoint, "cnn", {"image": np.zeros((1, 3, 32, 32), np.float32)})
    assert outputs["logits"].shape == (1, 10)
    assert sorted(path.name for path in here.iterdir()) == sorted(OTHERS)


def other_python(folder: Path, packages: list[Any], *, run_dir: Path) -> str:
    """What the probe prints in this Python without the environment of ours: `packages` are its PYTHONPATH."""
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *map(str, packages)])
    done = subprocess.run(
        [os.path.realpath(sys.executable), "-c", PROBE, run_dir],
        env=environment, cwd=folder, capture_output=True, text=True, timeout=240, check=True,
    )  # fmt: skip
    return done.stdout


def site_packages() -> Path:
    return Path(np.__file__).parents[1]


def test_a_missing_package_is_named_with_where_it_was_looked_for(tmp_path: Path) -> None:
    most, rest = tmp_path / "most", tmp_path / "rest"
    for folder in (most, rest):
        folder.mkdir()
    for path in site_packages().iterdir():
        if path.suffix != ".pth":
            folder = rest if path.name.startswith("onnxruntime") else most
            (folder / path.name).symlink_to(path)
    rest.chmod(0o777)
    what, fix = other_python(tmp_path, [most, rest], run_dir=tmp_path / "run").splitlines()
    assert "No module named 'onnxruntime'" in what
    assert f"{most}," in what
    assert f"{rest}, a folder that everyone may write to" in what
    assert "virtual environment" in fix
