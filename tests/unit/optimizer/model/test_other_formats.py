"""Tests that a model in another format is named, with the way that works for it."""

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from optimizer.errors import ModelError
from optimizer.model.files import load_proto
from optimizer.model.other_formats import why_not_onnx


def folder_of(*names: str) -> Callable[[Path], Path]:
    def make(root: Path) -> Path:
        for name in names:
            (root / "net" / name).parent.mkdir(parents=True, exist_ok=True)
            (root / "net" / name).write_bytes(b"x")
        return root / "net"

    return make


def file_of(name: str, *parts: str) -> Callable[[Path], Path]:
    def make(root: Path) -> Path:
        if not parts:
            (root / name).write_bytes(b"\x80\x02 no ONNX")
            return root / name
        with zipfile.ZipFile(root / name, "w") as archive:
            for part in parts:
                archive.writestr(part, b"x")
        return root / name

    return make


@pytest.mark.parametrize(
    ("make", "named", "way"),
    [
        (folder_of("config.json", "model.safetensors"), "Hugging Face", "optimum-cli export onnx"),
        (folder_of("saved_model.pb", "variables/variables.index"), "SavedModel", "tf2onnx"),
        (folder_of("config.pbtxt", "1/model.plan"), "Triton", "--model net"),
        (folder_of("config.json", "model.safetensors", "onnx.onnx"), "directory", "net/onnx.onnx"),
        (folder_of("scorer/1/model.py", "readme.md"), "Triton", "--model scorer"),
        (folder_of("readme.md"), "directory", ".onnx"),
        (file_of("net.plan"), "TensorRT engine", "--repository"),
        (file_of("net.engine"), "TensorRT engine", "--repository"),
        (file_of("net.pt", "net/code/__torch__.py", "net/data.pkl"), "TorchScript", "NAME/1/model.pt"),
        (file_of("net.pth", "archive/data.pkl", "archive/data/0"), "weights", "package.module:factory"),
        (file_of("net.safetensors"), "weights", "package.module:factory"),
        (file_of("net.keras"), "Keras", "net.keras').export"),
        (file_of("net.pkl"), "pickle", "skl2onnx"),
        (file_of("net.xml"), "OpenVINO", "--repository"),
        (file_of("net.pt"), "not ONNX", "Export"),
        (file_of("net.onnx"), "not ONNX", "Export"),
    ],
)
def test_the_way_that_works_is_named(tmp_path: Path, make: Callable[[Path], Path], named: str, way: str) -> None:
    with pytest.raises(ModelError) as raised:
        load_proto(make(tmp_path))
    assert named in raised.value.what
    assert way in raised.value.fix


def test_what_is_no_archive_or_no_model_is_not_named(tmp_path: Path) -> None:
    broken = file_of("m.pt", "archive/data.pkl")(tmp_path)
    broken.write_bytes(broken.read_bytes().replace(b"PK\x01\x02", b"PK\x09\x09"))
    assert why_not_onnx(broken) is None
    assert why_not_onnx(folder_of("2024/photo.jpg")(tmp_path)) is None
