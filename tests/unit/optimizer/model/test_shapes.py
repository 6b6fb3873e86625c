from pathlib import Path
from typing import Any

import pytest
from batch_models import draw, ints, node, write
from onnx_models import small_cnn, token_classifier

from optimizer.errors import ShapeError
from optimizer.model.onnx_model import Model, read_model
from optimizer.model.shapes import require_shapes, with_shapes


@pytest.fixture
def tokens(tmp_path: Path) -> Model:
    return read_model(token_classifier(tmp_path / "m.onnx"))


def image_model(path: Path, dims: Any) -> Model:
    return read_model(write(path, [node("Relu", "x", "y")], {"x": dims}, {"y": dims}))


def test_one_size_settles_every_axis_of_that_name(tokens: Model) -> None:
    model = with_shapes(tokens, {"ids": (16,)})
    assert [spec.concrete_shape for spec in model.inputs] == [(16,), (16,)]
    assert {spec.name: spec.concrete_shape for spec in model.outputs} == {"scores": (4,), "states": (16, 8)}
    assert [spec.shape for spec in model.inputs] == [(-1,), (-1,)], "what is served still accepts any size"
    assert {spec.name: spec.shape for spec in model.outputs} == {"scores": (4,), "states": (-1, 8)}


def test_the_batch_may_be_given_too(tokens: Model) -> None:
    model = with_shapes(tokens, {"ids": (8, 16)})
    assert [spec.concrete_shape for spec in model.inputs] == [(16,), (16,)]


def test_a_missing_size_names_the_flag_to_add(tokens: Model) -> None:
    with pytest.raises(ShapeError) as caught:
        with_shapes(tokens, {})
    assert (
        caught.value.what == "The size of ids axis 1 (tokens), mask axis 1 (tokens) varies, and load needs sizes."
    )
    assert caught.value.fix.startswith("Add --shape ids:128 (")


def test_the_flags_in_the_message_are_enough(tmp_path: Path) -> None:
    inputs = {"a": ["N", "rows", 3], "b": ["N", "rows", "columns"], "c": ["N", 5, None]}
    nodes = [node("ReduceSum", f"{name} one", f"{name}1", keepdims=0) for name in inputs]
    outputs = {"a1": ["N", 3], "b1": ["N", "columns"], "c1": ["N", None]}
    model = read_model(write(tmp_path / "m.onnx", nodes, inputs, outputs, {"one": ints(1)}))  # type: ignore[arg-type]
    with pytest.raises(ShapeError) as caught:
        with_shapes(model, {})
    flags = [word for word in caught.value.fix.split() if ":" in word]
    shapes = {name: tuple(map(int, sizes.split(","))) for name, sizes in (flag.split(":") for flag in flags)}
    assert shapes == {"a": (128, 3), "b": (128, 128), "c": (5, 128)}
    require_shapes(with_shapes(model, shapes))


@pytest.mark.parametrize(
    ("dims", "flag"),
    [
        (["N", 3, "height", "width"], "--shape x:3,224,224 "),
        (["N", None, None, None], "--shape x:3,224,224 "),
        (["N", "height", "width", 3], "--shape x:224,224,3 "),
        (["N", "frames", 80], "--shape x:128,80 "),
    ],
)
def test_proposed_sizes_suit_the_kind_of_input(
    tmp_path: Path, dims: list[object] | list[str | None], flag: str
) -> None:
    with pytest.raises(ShapeError) as caught:
        with_shapes(image_model(tmp_path / "m.onnx", dims), {})
    assert flag in caught.value.fix


def test_an_unknown_name_lists_the_right_ones(tokens: Model) -> None:
    with pytest.raises(ShapeError) as caught:
        with_shapes(tokens, {"input_ids": (16,)})
    assert str(caught.value) == "--shape input_ids: the model has no such input.\nIts inputs are ids, mask."


def test_a_wrong_rank_lists_the_dimensions(tokens: Model) -> None:
    with pytest.raises(ShapeError) as caught:
        with_shapes(tokens, {"ids": (1, 2, 3)})
    assert "has 3 sizes, and ids has the dimensions (batch, tokens)" in caught.value.what
    assert caught.value.fix == "Give 1 (tokens), leaving the batch out."


def test_sizes_that_contradict_each_other(tokens: Model) -> None:
    with pytest.raises(ShapeError, match="axis 1 cannot be 8; tokens is 16 already"):
        with_shapes(tokens, {"ids": (16,), "mask": (8,)})


def test_sizes_that_contradict_the_model(tmp_path: Path) -> None:
    model = read_model(small_cnn(tmp_path / "m.onnx"))
    with pytest.raises(ShapeError, match="axis 2 cannot be 224; the model fixes it at 32"):
        with_shapes(model, {"image": (3, 224, 224)})


def test_without_a_batch_all_dimensions_are_given(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", [node("MatMul", "a b", "y")], {"a": [3, "k"], "b": ["k", 2]}, {"y": [3, 2]})
    model = read_model(path)
    assert model.batch == "none"
    assert [spec.concrete_shape for spec in with_shapes(model, {"a": (3, 7)}).inputs] == [(3, 7), (7, 2)]
    with pytest.raises(ShapeError, match="Add --shape a:3,128 "):
        with_shapes(model, {})


def test_a_constant_shape_from_large_weights_is_no_obstacle(tmp_path: Path) -> None:
    nodes = [node("MatMul", "x w", "h"), node("Relu", "h", "y")]
    path = write(tmp_path / "m.onnx", nodes, {"x": ["N", "t", 64]}, {"y": ["N", "t", 64]}, {"w": draw(64, 64)})
    model = with_shapes(read_model(path), {"x": (9, 64)})
    assert model.outputs[0].concrete_shape == (9, 64)
