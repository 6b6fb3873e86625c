"""Tests of the accepted model files, and of the messages without PyTorch."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from loadgen.errors import BadInput
from optimizer.errors import ExportFailed
from optimizer.model.export import export_model
from optimizer.model_source import source_from_text


@pytest.fixture
def without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `import torch` fail in child processes, whether it is installed or not."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def test_without_torch(tmp_path: Path, without_torch: None) -> None:
    with pytest.raises(ExportFailed, match="needs PyTorch") as caught:
        export_model("my_models:by_name", tmp_path)
    assert "[torch]" in caught.value.fix


@pytest.mark.parametrize("make", [None, os.mkfifo, os.mkdir])
def test_a_file_that_is_not_there(tmp_path: Path, make: Callable[[Path], None] | None) -> None:
    path = tmp_path / "model.pt2"
    if make is not None:
        make(path)
    with pytest.raises(BadInput, match="does not exist or is not a file") as caught:
        export_model(path, tmp_path)  # opening a FIFO would block until the test's time-out
    assert str(path) in caught.value.what
    assert str(caught.value).count("\n") == 1


def test_what_a_model_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert source_from_text("models.resnet:small") == "models.resnet:small"
    assert source_from_text("m.onnx") == tmp_path / "m.onnx"
    (tmp_path / "a:b").touch()
    assert source_from_text("a:b") == tmp_path / "a:b"
