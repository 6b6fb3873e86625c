"""Tests of the parts of the runtime that need no Triton; `execute` is tested inside a real one."""

import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from model_repo.repository.write import RUNTIME
from model_repo.server.launchers import _embedded_folder


@pytest.fixture(scope="module")
def runtime() -> Iterator[ModuleType]:
    """Load the module from its file as Triton does, with the Python part of Triton's own library."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(_embedded_folder() / "backends" / "python")
        patch.setattr(sys, "dont_write_bytecode", True)
        spec = importlib.util.spec_from_file_location("triton_model", RUNTIME / "onnx_runtime.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module


def parts(*lengths: int, dtype: type[Any] = np.float32) -> list[Any]:
    return [np.full((length, 3), number, dtype) for number, length in enumerate(lengths)]


def test_parts_are_joined_in_order(runtime: ModuleType) -> None:
    joined = runtime.BatchBuffer().join(parts(1, 2, 1))
    assert joined[:, 0].tolist() == [0, 1, 1, 2]
    assert joined.shape == (4, 3)
    assert joined.dtype == np.float32


def test_one_part_is_passed_on_without_a_copy(runtime: ModuleType) -> None:
    (part,) = parts(2)
    assert runtime.BatchBuffer().join([part]) is part


def test_the_memory_is_kept_and_grows(runtime: ModuleType) -> None:
    buffer = runtime.BatchBuffer()
    first, smaller, larger = buffer.join(parts(2, 2)), buffer.join(parts(1, 1)), buffer.join(parts(8, 8))
    assert np.shares_memory(first, smaller)
    assert not np.shares_memory(first, larger)
    assert larger[:, 0].tolist() == [0] * 8 + [1] * 8


def test_dtypes_may_change_between_calls(runtime: ModuleType) -> None:
    buffer = runtime.BatchBuffer()
    buffer.join(parts(1, 1))
    assert buffer.join(parts(1, 2, dtype=np.int64)).tolist() == [[0] * 3, [1] * 3, [1] * 3]


@pytest.mark.parametrize("count", [1, 2])
def test_bytes_become_text(runtime: ModuleType, count: int) -> None:
    """This holds for a single request too: ONNX Runtime takes text, Triton gives bytes."""
    words = [np.array([[f"wörd {number}".encode()]], object) for number in range(count)]
    assert runtime.BatchBuffer().join(words).tolist() == [[f"wörd {number}"] for number in range(count)]
