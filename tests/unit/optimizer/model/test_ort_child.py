import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batch_models import draw, node, write

from optimizer.child import ChildFailed
from optimizer.errors import RunFailed
from optimizer.model.ort_child import run_in_child, run_model


def test_outputs_come_back_in_order_and_by_name(tmp_path: Path) -> None:
    nodes = [node("Add", "in/1 one", "out/1"), node("Cast", "in/1", "whole", to=7)]
    path = write(
        tmp_path / "m.onnx",
        nodes,
        {"in/1": ["N"]},
        {"out/1": ["N"], "whole": ["N"]},
        {"one": np.array([1], np.float32)},
        integers=["whole"],
    )
    feeds = [{"in/1": np.array([value], np.float32)} for value in (1.0, 5.5)]
    results = run_model(path, feeds)
    assert [result["out/1"].tolist() for result in results] == [[2.0], [6.5]]
    assert [result["whole"].tolist() for result in results] == [[1], [5]]


def test_string_outputs_come_back_as_text(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", [node("Cast", "x", "y", to=8)], {"x": ["N"]}, {"y": ["N"]})
    import onnx

    model = onnx.load_model(path)
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.STRING
    path.write_bytes(model.SerializeToString())
    (result,) = run_model(path, [{"x": np.array([2], np.float32)}])
    assert result["y"].tolist() == ["2"]


def test_a_model_that_does_not_load(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"nonsense")
    with pytest.raises(RunFailed) as caught:
        run_model(path, [])
    assert caught.value.stage == "load"


def test_an_input_that_does_not_fit(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.onnx", [node("MatMul", "x w", "y")], {"x": ["N", 4]}, {"y": ["N", 2]}, {"w": draw(4, 2)}
    )
    with pytest.raises(RunFailed, match="Got invalid dimensions") as caught:
        run_model(path, [{"x": draw(1, 5)}])
    assert caught.value.stage == "run"


def test_a_crash_is_an_error_and_not_the_end() -> None:
    with pytest.raises(RunFailed, match=r"load: it crashed with SIGSEGV$"):
        run_in_child(partial(signal.raise_signal, signal.SIGSEGV), limits=None, timeout_s=240)
    with pytest.raises(RunFailed, match=r"load: it crashed with SIGKILL \(out of memory\?\)$"):
        run_in_child(partial(signal.raise_signal, signal.SIGKILL), limits=None, timeout_s=240)


@pytest.mark.parametrize("bug", [partial(int, "no such luck"), partial(os._exit, 3)])
def test_a_bug_in_the_child_is_not_blamed_on_the_model(bug: Callable[[], Any]) -> None:
    with pytest.raises(ChildFailed, match=r"no such luck|exit code 3"):
        run_in_child(bug, limits=None, timeout_s=240)
