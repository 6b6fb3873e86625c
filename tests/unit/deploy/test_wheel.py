"""The wheel that a bundle carries."""

import configparser
import io
import zipfile
from importlib.metadata import version
from pathlib import Path

from deploy.images import own_wheel

ROOT = Path(__file__).parents[3]


def test_it_has_our_files_as_they_are_installed() -> None:
    with zipfile.ZipFile(io.BytesIO(own_wheel())) as wheel:
        assert wheel.testzip() is None
        names = set(wheel.namelist())
        for path in ("loadgen/cli.py", "model_repo/runtime/onnx_runtime.py", "deploy/templates/README.md.j2"):
            assert wheel.read(path) == (ROOT / path).read_bytes()
        info = f"tritune-{version('tritune')}.dist-info"
        assert b"Name: tritune" in wheel.read(f"{info}/METADATA")
        points = configparser.ConfigParser()
        points.read_string(wheel.read(f"{info}/entry_points.txt").decode())
        recorded = {line.split(",")[0] for line in wheel.read(f"{info}/RECORD").decode().splitlines()}
    assert recorded == names
    scripts = dict(points["console_scripts"])
    assert set(scripts) == {"loadtest", "optimize"}
    assert {place.partition(":")[0].replace(".", "/") + ".py" for place in scripts.values()} <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith("tests")]


def test_the_same_installation_gives_the_same_bytes() -> None:
    first = own_wheel()
    own_wheel.cache_clear()
    assert own_wheel() == first
