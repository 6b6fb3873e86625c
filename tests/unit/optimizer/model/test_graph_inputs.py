"""Inputs that requests carry in fewer bytes: the model that takes them is the user's own behind a cast."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_models import small_cnn

from loadgen.errors import BadInput
from optimizer.batching.kept import settled
from optimizer.errors import UnsupportedModel
from optimizer.model.graph_inputs import InputType, input_types_from_texts
from optimizer.model.onnx_model import Model
from optimizer.model.ort_child import run_model


def typed(path: Path, *texts: str) -> Model:
    return settled(path, {}, path.parent / "work", input_types=input_types_from_texts(texts)).batching.model


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x:uint8", InputType(datatype="uint8")),
        ("a:b:fp16", InputType(datatype="fp16")),
        ("x:uint8:0.5", InputType(datatype="uint8", scale=0.5)),
        ("x:uint8:-0.5,3", InputType(datatype="uint8", scale=-0.5, offset=3.0)),
    ],
)
def test_an_input_type_is_read_and_written_alike(text: str, expected: InputType) -> None:
    ((name, found),) = input_types_from_texts([text]).items()
    assert found == expected
    assert input_types_from_texts([f"{name}:{found.text}"]) == {name: expected}


@pytest.mark.parametrize(
    "text", ["x", ":uint8", "x:int8", "x:uint8:", "x:uint8:0", "x:uint8:1,2,3", "x:uint8:nan"]
)
def test_what_is_no_input_type_is_refused(text: str) -> None:
    with pytest.raises(BadInput) as refused:
        input_types_from_texts([text])
    assert refused.value.fix


@pytest.mark.parametrize(
    ("given", "bytes_each", "value"),
    [("uint8", 1, lambda x: x), ("uint8:0.25,-3", 1, lambda x: 0.25 * x - 3), ("fp16", 2, lambda x: x)],
)
def test_the_model_takes_fewer_bytes_and_computes_the_same(
    tmp_path: Path, given: str, bytes_each: int, value: Any
) -> None:
    path = small_cnn(tmp_path / "cnn.onnx")
    (plain,) = typed(path).all_inputs
    model = typed(path, f"{plain.name}:{given}")
    (changed,) = model.all_inputs
    assert changed.datatype == {1: "UINT8", 2: "FP16"}[bytes_each]
    assert (changed.name, changed.dims) == (plain.name, plain.dims)
    assert model.batched
    shape = (3, *(int(size) for size in plain.dims[1:]))
    requests = np.random.default_rng(1).integers(0, 256, shape).astype({1: np.uint8, 2: np.float16}[bytes_each])
    (expected,) = run_model(path, [{plain.name: value(requests.astype(np.float32))}])
    (found,) = run_model(model.path, [{plain.name: requests}])
    for name, array in expected.items():
        assert found[name] == pytest.approx(array, rel=1e-4, abs=1e-5)


def test_an_input_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel) as refused:
        typed(small_cnn(tmp_path / "m.onnx"), "x:uint8")
    assert "image" in refused.value.fix


def test_integers_need_no_other_type(tmp_path: Path) -> None:
    path = typed(small_cnn(tmp_path / "m.onnx"), "image:uint8").path
    with pytest.raises(UnsupportedModel):
        typed(path, "image:fp16")
