from pathlib import Path

import numpy as np
import onnx
from batch_models import ints, node, write

from optimizer.model.files import load_proto
from optimizer.model.graph_shapes import ShapeView


def seen(path: Path, batch: int = 1) -> ShapeView:
    proto = load_proto(path)
    view = ShapeView(proto, ["x"], batch)
    for each in proto.graph.node:
        view.see(each)
    return view


def test_parts_of_a_shape(tmp_path: Path) -> None:
    nodes = [
        node("Shape", "x", "tail", start=1),
        node("Shape", "x", "front", end=-1),
        node("Relu", "x", "y"),
    ]
    view = seen(write(tmp_path / "m.onnx", nodes, {"x": [1, 2, 3]}, {"y": [1, 2, 3]}))
    assert (view.value("tail").tolist(), view.value("front").tolist()) == ([2, 3], [1, 2])


def test_large_constants_are_not_computed(tmp_path: Path) -> None:
    nodes = [
        node("ConstantOfShape", "huge", "weights"),
        node("ConstantOfShape", "tiny", "zeros"),
        node("Range", "start limit step", "count"),
        node("Relu", "x", "y"),
    ]
    constants = {
        "huge": ints(100_000, 100_000),
        "tiny": ints(2, 2),
        "start": np.int64(0),
        "limit": np.int64(2**62),
        "step": np.int64(1),
    }
    view = seen(write(tmp_path / "m.onnx", nodes, {"x": [1, 2]}, {"y": [1, 2]}, constants))  # type: ignore[arg-type]
    assert (view.value("weights"), view.sizes("weights")) == (None, (100_000, 100_000))
    assert view.value("count") is None
    assert view.value("zeros").tolist() == [[0, 0], [0, 0]]


def test_arithmetic_that_fails_and_unknown_operators_teach_nothing(tmp_path: Path) -> None:
    nodes = [
        node("Div", "one zero", "bad"),
        onnx.helper.make_node("Mystery", ["x"], ["z"], domain="nowhere"),
        node("Relu", "z", "y"),
    ]
    view = seen(write(tmp_path / "m.onnx", nodes, {"x": [1, 2]}, {"y": [1, 2]}, {"one": ints(1), "zero": ints(0)}))
    assert (view.sizes("z"), view.sizes("y"), view.value("y")) == (None, None, None)
