"""Tests of graphs in half precision, built node by node: the cast nodes, the rest, and the names."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper

from optimizer.model.graph_shapes import tensor_types
from optimizer.model.ort_child import run_model
from optimizer.precision.half_cast import HalfGraph, cast_to_half, rounding_in_fp32
from optimizer.precision.half_plan import AT_ONCE, half_named, rounding_error

RNG = np.random.default_rng(0)
WEIGHT = (RNG.standard_normal((4, 4)) / 2).astype(np.float32)


def graph(nodes: list[Any], *, weights: Any = None, rank: int = 2, opset: int = 17) -> ModelProto:
    made = [
        helper.make_node(kind, list(reads), list(gives), name=gives[0], **attributes)
        for kind, reads, gives, attributes in nodes
    ]
    return helper.make_model(
        helper.make_graph(
            made,
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", *"abc"[: rank - 1]])],
            [numpy_helper.from_array(array, name) for name, array in (weights or {"w": WEIGHT}).items()],
        ),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=8,
    )


def node(
    kind: str, reads: str, *gives: str, **attributes: GraphProto | str | float
) -> tuple[str, list[str], tuple[str, ...], dict[str, GraphProto | str | float]]:
    return kind, reads.split(), gives, attributes


def cast(proto: ModelProto, name: str = "fp16", **options: Any) -> HalfGraph:
    """Return the graph in half precision, after checks that it is valid and that its types are consistent."""
    done = cast_to_half(proto, half_named(name), **options)
    onnx.checker.check_model(done.proto)
    onnx.shape_inference.infer_shapes(done.proto, strict_mode=True)
    return done


def types_of(done: HalfGraph) -> dict[str, int]:
    return tensor_types(done.proto)


def results(
    proto: ModelProto | bytes, tmp_path: Path, x: Any, name: str = "model.onnx"
) -> dict[str, NDArray[np.generic]]:
    onnx.save(proto, tmp_path / name)
    return run_model(tmp_path / name, [{"x": x}])[0]


def test_inputs_and_outputs_keep_their_types(tmp_path: Path) -> None:
    proto = graph([node("MatMul", "x w", "y")])
    done = cast(proto)
    kinds = types_of(done)
    assert (kinds["x"], kinds["y"], kinds["y__fp16"]) == (
        TensorProto.FLOAT,
        TensorProto.FLOAT,
        TensorProto.FLOAT16,
    )
    assert done.kept == {}
    x = RNG.standard_normal((3, 4)).astype(np.float32)
    assert results(done.proto, tmp_path, x)["y"] == pytest.approx(x @ WEIGHT, abs=5e-3)


def test_inputs_and_outputs_in_half() -> None:
    done = cast(graph([node("MatMul", "x w", "y")]), half_io=True)
    kinds = types_of(done)
    assert (kinds["x"], kinds["y"]) == (TensorProto.FLOAT16, TensorProto.FLOAT16)
    assert [made.op_type for made in done.proto.graph.node] == ["MatMul"]


def test_delicate_nodes_stay_in_fp32_between_casts() -> None:
    done = cast(graph([node("MatMul", "x w", "a"), node("Exp", "a", "b"), node("MatMul", "b w", "y")]))
    kinds = types_of(done)
    assert (kinds["a"], kinds["a__fp32"], kinds["b"]) == (
        TensorProto.FLOAT16,
        TensorProto.FLOAT,
        TensorProto.FLOAT,
    )
    assert list(done.kept) == ["b"]
    assert "Exp" in done.kept["b"]


def test_a_result_is_cast_once_for_all_its_readers() -> None:
    nodes = [node("MatMul", "x w", "a"), node("Exp", "a", "b"), node("Sqrt", "a", "c"), node("Add", "b c", "y")]
    done = cast(graph(nodes))
    assert [made.output[0] for made in done.proto.graph.node if made.op_type == "Cast"].count("a__fp32") == 1
    assert types_of(done)["y"] == TensorProto.FLOAT, "cheap nodes that read only fp32 stay there"


@pytest.mark.parametrize("weight", [WEIGHT * 1e6, np.full((4, 4), 1e-12, np.float32)])
def test_weights_outside_of_the_range_keep_their_node(weight: NDArray[Any]) -> None:
    proto = graph([node("MatMul", "x w", "y")], weights={"w": weight})
    assert "does not survive rounding" in cast(proto).kept["y"]
    assert cast(proto, "bf16").kept == {}


def test_magnitudes_that_were_seen() -> None:
    proto = graph([node("MatMul", "x w", "a"), node("MatMul", "a w", "y")])
    assert cast(proto, peaks={"a": 20_000.0}).kept == dict.fromkeys("ay", "magnitudes reach 2e+04")


def test_a_mask_keeps_no_attention_in_fp32() -> None:
    nodes = [
        node("MatMul", "x w", "scores"),
        node("Add", "scores far", "masked"),
        node("Softmax", "masked", "shares"),
        node("MatMul", "shares w", "y"),
    ]
    proto = graph(nodes, weights={"w": WEIGHT, "far": np.array([0, -1e4, 0, 0], np.float32)})
    assert cast(proto, peaks={"masked": 1e4}).kept == {}


def test_a_mask_beyond_the_range_gives_no_nan(tmp_path: Path) -> None:
    """The graph is (1 - mask) * -3.4e38, as exporters write it, with every position masked."""
    never = np.float32(np.finfo(np.float32).min)
    nodes = [
        node("MatMul", "x w", "scores"),
        node("Sub", "one x", "blocked"),
        node("Mul", "blocked never", "masking"),
        node("Add", "scores masking", "masked"),
        node("Softmax", "masked", "shares"),
        node("MatMul", "shares w", "y"),
    ]
    proto = graph(nodes, weights={"w": WEIGHT, "one": np.float32(1), "never": never})
    assert np.isfinite(results(cast(proto).proto, tmp_path, np.zeros((2, 4), np.float32))["y"]).all()


def test_what_a_subgraph_reads_keeps_its_type(tmp_path: Path) -> None:
    then = helper.make_graph(
        [helper.make_node("Add", ["a", "w0"], ["t"])], "t", [], [helper.make_tensor_value_info("t", 1, ["n", 4])]
    )
    other = helper.make_graph(
        [helper.make_node("Sub", ["a", "w0"], ["e"])], "e", [], [helper.make_tensor_value_info("e", 1, ["n", 4])]
    )
    nodes = [
        node("MatMul", "x w", "a"),
        node("ReduceMax", "x", "top", keepdims=0),
        node("Greater", "top w0", "high"),
        node("If", "high", "c", then_branch=then, else_branch=other),
        node("MatMul", "c w", "y"),
    ]
    done = cast(graph(nodes, weights={"w": WEIGHT, "w0": np.float32(0)}))
    assert types_of(done)["c"] == TensorProto.FLOAT
    assert types_of(done)["a"] == TensorProto.FLOAT
    results(done.proto, tmp_path, np.ones((1, 4), np.float32))


def test_sizes_of_a_resize_stay_fp32(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", "x w", "a"),
        node("Unsqueeze", "a axes", "wide"),
        node("Resize", "wide nothing scales", "y", mode="nearest"),
    ]
    weights = {
        "w": WEIGHT,
        "axes": np.array([1, 2], np.int64),
        "nothing": np.zeros(0, np.float32),
        "scales": np.array([1, 1, 1, 2], np.float32),
    }
    done = cast(graph(nodes, weights=weights, rank=4))
    assert results(done.proto, tmp_path, np.ones((2, 4), np.float32))["y"].shape == (2, 1, 1, 8)
    assert types_of(done)["scales"] == TensorProto.FLOAT


def test_constants_held_by_nodes(tmp_path: Path) -> None:
    nodes = [node("Constant", "", "c", value_float=0.5), node("MatMul", "x w", "a"), node("Mul", "a c", "y")]
    done = cast(graph(nodes))
    assert types_of(done)["c__fp16"] == TensorProto.FLOAT16
    assert results(done.proto, tmp_path, np.ones((1, 4), np.float32))["y"] == pytest.approx(
        WEIGHT.sum(axis=0, keepdims=True) / 2, abs=5e-3
    )


def test_weights_that_are_filled_in() -> None:
    nodes = [node("ConstantOfShape", "shape", "filled"), node("MatMul", "x filled", "y")]
    done = cast(graph(nodes, weights={"shape": np.array([4, 4], np.int64)}))
    assert types_of(done)["filled__fp16"] == TensorProto.FLOAT16
    assert [made.op_type for made in done.proto.graph.node] == ["Cast", "MatMul", "Cast"]


def test_old_files_list_constants_among_the_inputs() -> None:
    proto = graph([node("MatMul", "x w", "y")])
    proto.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 4]))
    assert [value.name for value in cast(proto).proto.graph.input] == ["x"]


def test_bf16_rounds_like_its_stand_in_and_unlike_fp32(tmp_path: Path) -> None:
    """Compares with rounding by hand: operands and the result of a product are rounded to 8 bits."""
    proto = graph([node("MatMul", "x w", "y")])
    x = RNG.standard_normal((2, 4)).astype(np.float32)
    done = cast(proto, "bf16")
    rounding_in_fp32(done, half_named("bf16"))
    bf16 = half_named("bf16").dtype
    by_hand = (x.astype(bf16).astype(np.float32) @ WEIGHT.astype(bf16).astype(np.float32)).astype(bf16)
    seen = results(done.proto, tmp_path, x)["y"]
    assert np.array_equal(seen, by_hand.astype(np.float32))
    assert not np.array_equal(seen, x @ WEIGHT)


@given(st.lists(st.floats(-6e4, 6e4, width=16), min_size=1, max_size=20))
def test_what_is_a_half_loses_nothing(values: list[Any]) -> None:
    assert rounding_error(np.array(values, np.float32), half_named("fp16")) == 0


def test_many_weights_are_taken_together() -> None:
    """They are rounded in parts: the error is that of all, and one number out of range is noticed in any part."""
    weights = np.random.default_rng(0).standard_normal((AT_ONCE, 2)).astype(np.float32)
    weights[:1] *= 1e3  # its part loses nearly all
    lost = weights.astype(np.float16).astype(np.float64) - weights
    assert rounding_error(weights, half_named("fp16")) == pytest.approx(
        np.sqrt(np.mean(lost**2) / np.mean(weights**2))
    )
    weights[-1, 0] = 1e6
    assert rounding_error(weights, half_named("fp16")) == np.inf
    assert rounding_error(weights[:0], half_named("fp16")) == 0


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["fp16", "bf16"]))
def test_ordinary_weights_lose_less_than_a_unit(seed: int, name: Any) -> None:
    weights = np.random.default_rng(seed).standard_normal(100).astype(np.float32)
    assert rounding_error(weights, half_named(name)) <= half_named(name).unit
