from pathlib import Path

import numpy as np
import onnx
import pytest
from batch_models import computed_shapes, draw, ints, node, write

from optimizer.model.files import load_proto
from optimizer.model.graph_shapes import ShapeView, computed_from_inputs


def seen(path: Path, batch: int = 1) -> ShapeView:
    proto = load_proto(path)
    view = ShapeView(proto, ["x"], batch)
    for each in proto.graph.node:
        view.see(each)
    return view


@pytest.mark.parametrize("batch", [1, 7])
def test_shape_arithmetic_is_carried_out(tmp_path: Path, batch: int) -> None:
    view = seen(computed_shapes(tmp_path / "m.onnx"), batch)
    assert view.value("wanted").tolist() == [batch, 2, 3]
    assert view.sizes("grid") == (batch, 2, 3)
    assert view.sizes("y") == (1, 6)
    assert view.value("grid") is None


def test_what_depends_on_data_is_not_known(tmp_path: Path) -> None:
    nodes = [node("NonZero", "x", "places"), node("Shape", "places", "s"), node("Relu", "x", "y")]
    view = seen(write(tmp_path / "m.onnx", nodes, {"x": [1, 6]}, {"y": [1, 6]}))
    assert view.sizes("places") == (2, None)
    assert view.value("s") is None
    assert view.sizes("s") == (2,)


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


def test_what_is_computed_from_inputs(tmp_path: Path) -> None:
    nodes = [node("Relu", "w", "r"), node("MatMul", "x r", "m"), node("Relu", "m", "y")]
    proto = load_proto(write(tmp_path / "m.onnx", nodes, {"x": [1, 4]}, {"y": [1, 4]}, {"w": draw(4, 4)}))
    assert computed_from_inputs(proto.graph) == {"x", "m", "y"}
