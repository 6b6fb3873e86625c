"""Interfaces that Triton's protocol cannot carry: the file that is served instead computes the same."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from batch_models import draw, node, write
from foreign_models import forest_with_zipmap

from optimizer.batching.dynamic_batch import carried
from optimizer.batching.kept import settled
from optimizer.errors import UnsupportedModel
from optimizer.model.onnx_model import read_model
from optimizer.model.ort_child import run_model


def scalars(path: Path) -> Path:
    """x (N, 4) and a factor of rank 0 -> y (N, 4), of which a branch reads the factor, and their sum of rank 0."""
    branches = {
        f"{which}_branch": onnx.helper.make_graph(
            [node("Mul", "x factor", which) if which == "then" else node("Identity", "x", which)],
            which,
            [],
            [onnx.helper.make_tensor_value_info(which, onnx.TensorProto.FLOAT, None)],
        )
        for which in ("then", "else")
    }
    nodes = [
        node("Greater", "factor zero", "positive"),
        node("If", "positive", "y", **branches),
        node("ReduceSum", "y", "sum", keepdims=0),
        node("Identity", "factor", "factor_scalar"),  # a name that is taken
        node("Mul", "sum factor_scalar", "scaled"),
    ]
    return write(
        path,
        nodes,
        {"x": ["N", 4], "factor": []},
        {"y": ["N", 4], "sum": [], "scaled": []},
        {"zero": np.array(0, np.float32)},
    )


def test_scalars_get_an_axis(tmp_path: Path) -> None:
    path = scalars(tmp_path / "m.onnx")
    graph, notes = carried(path, tmp_path / "work")
    target = graph.path
    assert target.name == path.name
    assert len(notes) == 3
    x = draw(3, 4)
    (own,) = run_model(path, [{"x": x, "factor": np.array(2, np.float32)}])
    (served,) = run_model(target, [{"x": x, "factor": np.array([2], np.float32)}])
    assert served.keys() == own.keys()
    for name, values in own.items():
        np.testing.assert_array_equal(served[name].reshape(values.shape), values)
    assert [tensor.dims for tensor in read_model(target).all_outputs] == [("N", 4), (1,), (1,)]


def test_a_dictionary_for_each_row_is_served_as_a_row_of_its_values(tmp_path: Path) -> None:
    path = forest_with_zipmap(tmp_path / "forest.onnx")
    done = settled(path, {}, tmp_path / "work").batching
    assert done.model.batched
    name = next(tensor.name for tensor in done.model.all_outputs if tensor.datatype == "FP32")
    (served,) = run_model(done.model.path, [{done.model.all_inputs[0].name: draw(5, 12)}])
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (rows,) = session.run([name], {session.get_inputs()[0].name: draw(5, 12)})
    np.testing.assert_array_equal(served[name], [list(row.values()) for row in rows])


def test_an_old_file_whose_constants_are_no_inputs_is_served(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.onnx",
        [node("Mul", "x w", "y")],
        {"x": ["N", 4]},
        {"y": ["N", 4]},
        {"w": draw(4)},
        ir_version=3,
    )
    assert settled(path, {}, tmp_path / "work").batching.model.batched


def test_other_files_stay_as_they_are(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", [node("Relu", "x", "y")], {"x": ["N", 4]}, {"y": ["N", 4]})
    graph, notes = carried(path, tmp_path / "work")
    assert (graph.path, notes) == (path, ())


def test_what_no_tensor_can_hold_is_refused(tmp_path: Path) -> None:
    nodes = [node("SequenceConstruct", "x x", "both")]
    path = write(tmp_path / "m.onnx", nodes, {"x": ["N", 4]}, {"both": None})
    proto = onnx.load(path)
    proto.graph.output[0].CopyFrom(
        onnx.helper.make_tensor_sequence_value_info("both", onnx.TensorProto.FLOAT, ["N", 4])
    )
    onnx.save(proto, path)
    with pytest.raises(UnsupportedModel, match="sequence"):
        settled(path, {}, tmp_path / "work")
