"""Tensors of responses by DLPack: the stub's way to mark a capsule as taken leaves no error behind.

Left as it is, numpy 2 prints an error for each tensor, and numpy 1 crashes.
"""

import ctypes
import importlib.util
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_repo.repository.write import RUNTIME

_rename = ctypes.pythonapi.PyCapsule_SetName
_rename.argtypes = (ctypes.py_object, ctypes.c_char_p)
_NAME = b"used_dlpack"


class StubTensor:
    """Takes a capsule as the stub of Triton 24.10 does: by another name than the protocol's "used_dltensor"."""

    def __init__(self, name: str, capsule: Any) -> None:
        self.name = name
        _rename(capsule, _NAME)

    @classmethod
    def from_dlpack(cls, name: str, tensor: Any) -> "StubTensor":
        return cls(name, tensor if type(tensor).__name__ == "PyCapsule" else tensor.__dlpack__())


def loaded(file: Path, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    utils = types.ModuleType("triton_python_backend_utils")
    utils.Tensor = StubTensor  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", utils)
    monkeypatch.syspath_prepend(str(RUNTIME))  # as `tritune_gpu` lies next to model.py
    spec = importlib.util.spec_from_file_location(f"served_{file.stem}", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def errors_of(make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the errors that Python could only print."""
    seen: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda error: seen.append(str(error.exc_value)))
    make()
    return seen


@pytest.mark.parametrize(
    ("file", "function"), [("gpu_model.py", "_tensor_by_dlpack"), ("onnx_runtime.py", "tensor_by_dlpack")]
)
def test_a_response_leaves_no_error_behind(file: str, function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = getattr(loaded(RUNTIME / file, monkeypatch), function)
    array = np.ones((1, 1000), np.float16)
    held = sys.getrefcount(array)
    tensor: list[Any] = []
    assert errors_of(lambda: tensor.append(made("logits", array)), monkeypatch) == []
    assert tensor[0].name == "logits"
    assert sys.getrefcount(array) == held + 1  # the tensor's, which the stub gives back
