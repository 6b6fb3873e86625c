"""requirements-cpu.txt: an installation without GPU libraries. UPDATE_GOLDENS=1 rewrites it, and fails."""

import os
import tomllib
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from deploy.images import SERVER, installed_pins

ROOT = Path(__file__).parents[2]
FILE = ROOT / "requirements-cpu.txt"
OF_A_GPU = {"cuda-bindings", "cuda-pathfinder", "onnxruntime-gpu"}
HEAD = """\
# tritune with the embedded server, for machines without a GPU: no GPU library, and nothing to compile.
#   pip install --no-deps --no-compile -r requirements-cpu.txt .
# Written by tests/golden/test_requirements.py, from pyproject.toml and constraints.txt.
"""


def rendered() -> str:
    """The file: what our dependencies need, with ONNX Runtime's package for CPUs, and the server's wheel alone."""
    pins: dict[str, str] = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        name, _, version = line.partition("==")
        pins[canonicalize_name(name)] = version
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    needed: dict[str, str] = {name: pins[name] for name in {*installed_pins(dependencies), SERVER} - OF_A_GPU}
    needed["onnxruntime"] = pins["onnxruntime-gpu"]
    return HEAD + "".join(f"{name}=={version}\n" for name, version in sorted(needed.items()))


def test_the_requirements_of_a_cpu_are_those_of_the_project() -> None:
    text = rendered()
    if os.environ.get("UPDATE_GOLDENS"):
        FILE.write_text(text)
        pytest.fail(f"{FILE.name} has been rewritten: read the difference, then run without UPDATE_GOLDENS")
    assert FILE.read_text() == text
    assert not [line for line in text.splitlines() if line.startswith(("nvidia-cu", "torch", "tensorrt"))]
