from pathlib import Path
from typing import Any

import bad_models
import numpy as np
import onnx
import pytest
from batch_models import draw, ints, node, write
from onnx import TensorProto
from onnx_models import small_cnn, token_classifier

from model_repo.spec import TensorSpec
from optimizer.errors import ModelError, UnsupportedModel
from optimizer.model.onnx_model import ModelTensor, claimed_batch, read_model, triton_name


def test_a_convolutional_network(tmp_path: Path) -> None:
    model = read_model(small_cnn(tmp_path / "my net.v2.onnx"))
    assert model.name == "my_net.v2"
    assert model.batch == "dynamic"
    assert model.inputs == (
        TensorSpec(name="image", datatype="FP32", shape=(3, 32, 32), sample_shape=(3, 32, 32)),
    )
    assert [(output.name, output.shape) for output in model.outputs] == [("logits", (10,))]
    assert model.opset == 17
    assert model.open_axes == ()
    assert model.size_bytes == model.path.stat().st_size
    assert model.files == (("model.onnx", model.path),)
    assert len(model.sha256) == 64


def test_two_int64_inputs_with_a_second_axis_that_varies(tmp_path: Path) -> None:
    model = read_model(token_classifier(tmp_path / "m.onnx"))
    assert [(spec.name, spec.datatype, spec.shape) for spec in model.inputs] == [
        ("ids", "INT64", (-1,)),
        ("mask", "INT64", (-1,)),
    ]
    assert model.open_axes == (("ids", 1, "tokens"), ("mask", 1, "tokens"))
    assert {spec.name: spec.shape for spec in model.outputs} == {"scores": (4,), "states": (-1, 8)}


def test_constants_among_the_inputs_are_not_inputs(tmp_path: Path) -> None:
    nodes = [node("MatMul", "x w", "y")]
    path = write(
        tmp_path / "m.onnx",
        nodes,
        {"x": [1, 4]},
        {"y": [1, 2]},
        {"w": draw(4, 2)},
        opset=9,
        ir_version=3,
        constants_as_inputs=True,
    )
    model = read_model(path)
    assert [spec.name for spec in model.inputs] == ["x"]
    assert model.batch == "fixed"


def test_output_shapes_are_inferred_where_the_file_has_none(tmp_path: Path) -> None:
    nodes = [node("Reshape", "x rows", "y")]
    path = write(
        tmp_path / "m.onnx", nodes, {"x": ["N", 2, 6]}, {"y": [None, None, None]}, {"rows": ints(0, 3, 4)}
    )
    assert read_model(path).outputs[0].shape == (3, 4)


def test_external_data_belongs_to_the_model(tmp_path: Path) -> None:
    weights = bad_models.weights_for(tmp_path)
    model = read_model(bad_models.with_external_data(tmp_path / "m.onnx"))
    assert model.files == (("model.onnx", tmp_path / "m.onnx"), ("weights.bin", weights))
    assert model.size_bytes == (tmp_path / "m.onnx").stat().st_size + weights.stat().st_size


@pytest.mark.parametrize(
    ("stem", "name"),
    [
        ("README.md", "README.md_model"),
        ("resnet-50", "resnet-50"),
        ("a b/c", "a_b_c"),
        ("..", "model"),
        ("модель", "model"),
        ("_x_", "x"),
        ("1", "1"),
    ],
)
def test_names_that_triton_accepts(stem: str, name: str) -> None:
    assert triton_name(stem) == name


def tensors(*dims: Any) -> tuple[Any, ...]:
    return tuple(ModelTensor(name=f"t{i}", datatype="FP32", dims=each) for i, each in enumerate(dims))


@pytest.mark.parametrize(
    ("inputs", "outputs", "batch"),
    [
        ([("N", 3)], [("N", 2)], "dynamic"),
        ([("N", 3), ("M",)], [("K", 2)], "dynamic"),  # names may differ: the proof decides
        ([(1, 3)], [(1, 2)], "fixed"),
        ([("N", 3)], [(1, 2)], "dynamic"),  # a 1 left over from the export
        ([("N", 3)], [(5, 2)], "none"),
        ([(1, 3), ("N", 2)], [("N", 2)], "none"),
        ([("N", 3), ()], [("N", 2)], "none"),
        ([(8, 3)], [(8, 2)], "fixed"),
        ([(8, 3), (1, 3)], [(8, 2)], "none"),
        ([(8, 3)], [(1, 2)], "none"),
        ([("N", 3)], [()], "none"),
    ],
)
def test_what_leading_dimensions_look_like(inputs: Any, outputs: Any, batch: str) -> None:
    assert claimed_batch(tensors(*inputs), tensors(*outputs)) == batch


def test_every_datatype_has_a_name_in_the_protocol(tmp_path: Path) -> None:
    for kind, name in ((TensorProto.FLOAT16, "FP16"), (TensorProto.UINT8, "UINT8"), (TensorProto.BOOL, "BOOL")):
        path = write(tmp_path / "m.onnx", [node("Identity", "x", "y")], {"x": ["N", 4]}, {"y": ["N", 4]})
        proto = onnx.load_model(path)
        for value in (*proto.graph.input, *proto.graph.output):
            value.type.tensor_type.elem_type = kind
        path.write_bytes(proto.SerializeToString())
        assert read_model(path).inputs[0].datatype == name


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (bad_models.truncated, ModelError, ["cut short"]),
        (bad_models.unknown_operator, UnsupportedModel, ["operator Frobnicate", "node 'the_culprit'"]),
        (
            lambda path: bad_models.unknown_operator(path, domain="com.acme"),
            UnsupportedModel,
            ["operator com.acme:Frobnicate", "node 'the_culprit'"],
        ),
        (bad_models.unsupported_type, UnsupportedModel, ["operator Erf for bfloat16", "node 'the_Erf_y'"]),
        (bad_models.sequence_input, UnsupportedModel, ["'x'", "is a sequence"]),
        (bad_models.without_inputs, UnsupportedModel, ["has no inputs"]),
        (bad_models.without_rank, UnsupportedModel, ["does not give the shape of x"]),
    ],
)
def test_bad_models_are_refused_in_two_lines(
    tmp_path: Path, make: Any, kind: type[ModelError], words: list[str]
) -> None:
    path = make(tmp_path / "m.onnx")
    path = path or tmp_path / "m.onnx"
    with pytest.raises(kind) as caught:
        read_model(path)
    assert len(str(caught.value).splitlines()) == 2
    assert caught.value.exit_code == 2
    for word in words:
        assert word in caught.value.what


def test_an_invalid_graph_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", [node("Add", "x nowhere", "y")], {"x": ["N", 4]}, {"y": ["N", 4]})
    with pytest.raises(ModelError, match=r"not a valid ONNX model.*nowhere"):
        read_model(path)


def test_a_future_opset_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", [node("Add", "x x", "y")], {"x": ["N", 4]}, {"y": ["N", 4]}, opset=99)
    with pytest.raises(UnsupportedModel, match="Opset 99"):
        read_model(path)


def test_nothing_in_the_file_runs_when_it_is_read(tmp_path: Path) -> None:
    """A pickle that would write a mark is not unpickled."""
    import pickle

    class Mark:
        def __reduce__(self) -> str | tuple[Any, ...]:
            return np.save, (str(tmp_path / "mark"), [1])

    path = tmp_path / "m.onnx"
    path.write_bytes(pickle.dumps(Mark()))
    with pytest.raises(ModelError):
        read_model(path)
    assert not (tmp_path / "mark.npy").exists()
