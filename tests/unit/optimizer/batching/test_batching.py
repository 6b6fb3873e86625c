from pathlib import Path
from typing import Any

import bad_models
import batch_models
import numpy as np
import onnx
import pytest
from onnx_models import doubler, small_cnn, token_classifier

from optimizer.batching.dynamic_batch import Batching, dynamic_batch, modernized
from optimizer.errors import ShapeError, UnsupportedModel
from optimizer.model.onnx_model import read_model
from optimizer.model.ort_child import run_model
from optimizer.model.shapes import with_shapes

pytestmark = pytest.mark.slow


def batching(path: Path, shapes: dict[Any, Any] | None = None) -> Batching:
    """Return the batching that `optimize` chooses for a model; rewritten files are in `work`."""
    return dynamic_batch(with_shapes(read_model(path), shapes or {}), path.parent / "work")


def test_a_dynamic_batch_is_kept(tmp_path: Path) -> None:
    path = small_cnn(tmp_path / "m.onnx")
    done = batching(path)
    assert (done.action, done.model.path, done.model.batched) == ("kept", path, True)
    assert "batches of 2, 3, 4 and 64 gave the same rows as single runs" in done.reason
    assert list((tmp_path / "work").iterdir()) == []


def test_a_large_batch_that_does_not_run_says_nothing_of_the_rows(tmp_path: Path) -> None:
    done = batching(batch_models.sixteen_rows_at_most(tmp_path / "m.onnx"))
    assert done.action == "kept"
    assert "batches of 2, 3, 4 gave the same rows" in done.reason


def test_tokens_with_a_second_axis_that_varies(tmp_path: Path) -> None:
    done = batching(token_classifier(tmp_path / "m.onnx"), {"ids": (16,)})
    assert done.action == "kept"
    assert [spec.shape for spec in done.model.inputs] == [(-1,), (-1,)]


def test_one_number_a_request(tmp_path: Path) -> None:
    done = batching(doubler(tmp_path / "m.onnx"))
    assert (done.action, done.model.inputs[0].shape) == ("kept", ())


@pytest.mark.parametrize(
    "make",
    [
        lambda path: small_cnn(path, batch=1),
        lambda path: batch_models.flattened(path, (1, 6)),
        batch_models.heads_folded_into_batch,
        batch_models.sequence_joined_with_batch,
        batch_models.class_token,
        batch_models.enlarged,
    ],
)
def test_a_batch_fixed_at_1_is_rewritten(tmp_path: Path, make: Any) -> None:
    path = make(tmp_path / "m.onnx")
    before = path.read_bytes()
    done = batching(path)
    assert done.action == "rewritten"
    assert done.model.batched
    assert done.model.path == tmp_path / "work" / "m-batched.onnx"
    assert [file.name for file in (tmp_path / "work").iterdir()] == ["m-batched.onnx"]
    assert path.read_bytes() == before
    again = read_model(done.model.path)
    assert (again.batch, again.inputs, again.sha256) == ("dynamic", done.model.inputs, done.model.sha256)


@pytest.mark.parametrize("rows", [2, 8])
@pytest.mark.parametrize(
    "make",
    [
        lambda path, rows: small_cnn(path, batch=rows),
        batch_models.heads_folded_into_batch,
        batch_models.sequence_joined_with_batch,
        batch_models.class_token,
        batch_models.enlarged,
    ],
)
def test_a_batch_fixed_at_more_rows_is_rewritten_for_single_ones(tmp_path: Path, make: Any, rows: int) -> None:
    path = make(tmp_path / "m.onnx", rows=rows)
    model = read_model(path)
    done = batching(path)
    assert (model.batch, model.fixed_rows) == ("fixed", rows)
    assert (done.action, done.model.batched, done.model.fixed_rows) == ("rewritten", True, 1)
    (name, dims) = model.all_inputs[0].name, model.all_inputs[0].dims
    samples = batch_models.draw(rows, *map(int, dims[1:]))
    (whole,) = run_model(path, [{name: samples}])
    alone = run_model(done.model.path, [{name: samples[at : at + 1]} for at in range(rows)])
    for output, values in whole.items():
        each = np.concatenate([one[output] for one in alone])
        np.testing.assert_allclose(each, values, rtol=1e-4, atol=1e-5)  # type: ignore[arg-type]


def test_a_batch_of_any_size_equals_single_runs_of_the_original(tmp_path: Path) -> None:
    path = batch_models.heads_folded_into_batch(tmp_path / "m.onnx")
    rewritten = batching(path).model.path
    rows = batch_models.draw(7, 3, 8)
    (batch,) = run_model(rewritten, [{"x": rows}])
    alone = run_model(path, [{"x": rows[index : index + 1]} for index in range(7)])
    np.testing.assert_allclose(batch["y"], np.concatenate([each["y"] for each in alone]), rtol=1e-5, atol=1e-6)  # type: ignore[arg-type]


def test_weights_outside_the_file_travel_with_the_rewritten_one(tmp_path: Path) -> None:
    bad_models.weights_for(tmp_path)
    path = bad_models.with_external_data(tmp_path / "m.onnx")
    proto = onnx.load_model(path, load_external_data=False)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    path.write_bytes(proto.SerializeToString())
    done = batching(path)
    assert done.action == "rewritten"
    assert dict(done.model.files)["weights-0.bin"] == tmp_path / "work" / "weights-0.bin"
    assert read_model(done.model.path).batch == "dynamic"
    assert read_model(path).batch == "fixed"  # the user's weights were copied, not linked: ONNX still accepts them


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: batch_models.mixing(path, batch=1), "comes out differently in a batch of 2: output y"),
        (batch_models.mixing, "comes out differently in a batch of 2: output y"),
        (lambda path: batch_models.mixing_at(path, 2, "Equal"), "in a batch of 2: output y"),
        (lambda path: batch_models.mixing_at(path, 3, "Equal"), "in a batch of 3: output y"),
        (lambda path: batch_models.mixing_at(path, 4, "Greater"), "in a batch of 64: output y"),
        (batch_models.summed, "output y has shape (1, 4) for a batch of 2"),
        (batch_models.constant_output, "its outputs hardly depend on its inputs"),
        (lambda path: batch_models.mixing(path, batch=8), "sample 1 comes out differently"),
        (lambda path: batch_models.offset_by_place(path, 8), "comes out differently in a batch of 8: output y"),
        (batch_models.turned, "not one batch (x: 8, y: 4)"),
    ],
)
def test_what_is_not_a_batch_is_served_whole(tmp_path: Path, make: Any, why: str) -> None:
    done = batching(make(tmp_path / "m.onnx"))
    assert done.action == "unbatched"
    assert not done.model.batched
    assert why in done.reason
    assert all(spec.concrete_shape is not None for spec in done.model.inputs)
    assert len(done.model.inputs[0].shape) == len(done.model.all_inputs[0].dims)
    assert list((tmp_path / "work").iterdir()) == []


def test_a_sequence_in_front_is_noticed_and_needs_a_length(tmp_path: Path) -> None:
    path = batch_models.recurrent(tmp_path / "m.onnx")
    with pytest.raises(ShapeError) as caught:
        batching(path)
    assert "The leading dimension is not a batch" in caught.value.what
    assert "--shape x:128,4" in caught.value.fix
    done = batching(path, {"x": (20, 4)})
    assert (done.action, done.model.inputs[0].shape, done.model.inputs[0].concrete_shape) == (
        "unbatched",
        (-1, 4),
        (20, 4),
    )


@pytest.mark.parametrize("baked", [(8, 2, 2), (2, 8, 2), (8, -1, 2)])
def test_the_advice_on_a_batch_that_a_reshape_has_baked_in_is_enough(tmp_path: Path, baked: Any) -> None:
    nodes = [batch_models.node("Reshape", "x baked", "a"), batch_models.node("Reshape", "a rows", "y")]
    constants = {"baked": batch_models.ints(*baked), "rows": batch_models.ints(-1, 4)}
    path = batch_models.write(tmp_path / "m.onnx", nodes, {"x": ["batch", 4]}, {"y": ["batch", 4]}, constants)
    with pytest.raises(ShapeError) as caught:
        batching(path)
    assert "--shape x:8,4" in caught.value.fix
    done = batching(path, {"x": (8, 4)})
    assert (done.action, done.model.inputs[0].concrete_shape) == ("unbatched", (8, 4))


def test_a_size_that_an_exporter_fixed_without_saying_so(tmp_path: Path) -> None:
    path = batch_models.baked_sequence(tmp_path / "m.onnx")
    with pytest.raises(ShapeError) as caught:
        batching(path, {"x": (3, 4)})
    assert "does not run as it is" in caught.value.what
    assert "x (1, 3, 4)" in caught.value.what
    assert "--shape x" not in caught.value.fix  # no number of rows would do
    assert batching(path, {"x": (5, 4)}).action == "kept"


def test_an_old_opset_is_converted_and_its_constants_leave_the_inputs(tmp_path: Path) -> None:
    done = batching(batch_models.opset_6(tmp_path / "m.onnx"))
    assert done.action == "rewritten"
    assert "Converted from opset 6 to 7." in done.reason
    proto = onnx.load_model(done.model.path)
    assert [value.name for value in proto.graph.input] == ["x"]
    (result,) = run_model(done.model.path, [{"x": np.array([[1, 2, 3, 4], [0, 0, 0, 0]], np.float32)}])
    bias = batch_models.draw(4)
    np.testing.assert_allclose(result["y"], [bias + np.arange(1, 5), bias], rtol=1e-6)  # type: ignore[arg-type]


def test_an_old_opset_with_a_wrong_shape_of_a_constant_cannot_be_converted(tmp_path: Path) -> None:
    path = batch_models.opset_6(tmp_path / "m.onnx")
    proto = onnx.load_model(path)
    (bias,) = (value for value in proto.graph.input if value.name == "bias")
    del bias.type.tensor_type.shape.dim[:]  # a scalar, and its values are a vector
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(UnsupportedModel, match=r"opset 6, .* converting it failed: .* differ in rank"):
        modernized(read_model(path), tmp_path / "work")


def test_dynamic_quantization_is_not_mistaken_for_mixing(tmp_path: Path) -> None:
    assert batching(batch_models.quantized(tmp_path / "m.onnx")).action == "kept"
