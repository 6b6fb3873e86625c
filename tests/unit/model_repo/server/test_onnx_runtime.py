"""Tests of the parts of the runtime that need no Triton; `execute` is tested inside a real one."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from onnx_models import small_cnn

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


def masks_of_a_session(folder: Path, wanted: str) -> set[str]:
    """The affinity masks of all threads of a process on one processor that has opened a session."""
    model = small_cnn(folder / "model.onnx")
    code = (
        "import importlib.util, os, sys; from pathlib import Path\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        f"sys.path.insert(0, {str(_embedded_folder() / 'backends' / 'python')!r})\n"
        f"spec = importlib.util.spec_from_file_location('runtime', {str(RUNTIME / 'onnx_runtime.py')!r})\n"
        "runtime = importlib.util.module_from_spec(spec); spec.loader.exec_module(runtime)\n"
        f"session = runtime.open_session(Path({str(model)!r}), {{'intra_op_threads': {wanted!r}}})\n"
        "for task in Path('/proc/self/task').iterdir():\n"
        "    print(*[line.split()[1] for line in (task / 'status').read_text().splitlines()\n"
        "            if line.startswith('Cpus_allowed_list')])\n"
    )
    done = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.skipif(os.cpu_count() == 1, reason="a machine with one processor has none to leave out")
@pytest.mark.parametrize("wanted", ["0", "2"])
def test_no_thread_leaves_the_processors_of_the_process(tmp_path: Path, wanted: str) -> None:
    """Left to itself, ONNX Runtime pins its threads all over the machine, past the mask that `taskset` gave."""
    assert masks_of_a_session(tmp_path, wanted) == {str(min(os.sched_getaffinity(0)))}
