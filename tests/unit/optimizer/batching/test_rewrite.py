"""Tests of rewritten graphs, run by ONNX's own reference evaluator: no ONNX Runtime, no file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import batch_models
import numpy as np
import pytest
from onnx import ModelProto
from onnx.reference import ReferenceEvaluator

from optimizer.batching.rewrite import free_batch, places_after_reshape
from optimizer.model.files import load_proto


def freed(path: Path) -> tuple[str, ModelProto, ModelProto]:
    """Free the batch; return the description of the rewrite, and the models before and after."""
    before, after = load_proto(path), load_proto(path)
    inputs = [value.name for value in after.graph.input]
    return free_batch(after, inputs), before, after


def assert_rows_equal_single_runs(before: ModelProto, after: ModelProto) -> None:
    dims = [dim.dim_value for dim in before.graph.input[0].type.tensor_type.shape.dim]
    rows = np.random.default_rng(0).standard_normal((3, *dims[1:])).astype(np.float32)
    name = before.graph.input[0].name
    (batch,) = ReferenceEvaluator(after).run(None, {name: rows})
    for index in range(3):
        (alone,) = ReferenceEvaluator(before).run(None, {name: rows[index : index + 1]})
        np.testing.assert_allclose(batch[index : index + 1], alone, rtol=1e-5, atol=1e-6)  # type: ignore[arg-type]


@pytest.mark.parametrize("target", [(-1, 6), (0, -1), (0, 6)])
def test_a_reshape_that_was_free_is_left_alone(tmp_path: Path, target: Sequence[int]) -> None:
    words, before, after = freed(batch_models.flattened(tmp_path / "m.onnx", target))
    assert words == ""
    assert list(after.graph.node) == list(before.graph.node)
    assert_rows_equal_single_runs(before, after)


def test_only_what_is_baked_in_is_freed_among_computed_shapes(tmp_path: Path) -> None:
    words, before, after = freed(batch_models.computed_shapes(tmp_path / "m.onnx"))
    assert words == "1 Reshape"
    assert_rows_equal_single_runs(before, after)


@pytest.mark.parametrize(
    ("data", "axis", "outer", "sizes", "places"),
    [
        ((1, 2, 3), 0, 1, (1, 6), [(0, 1)]),  # flattened
        ((3, 1, 8), 1, 1, (3, 2, 4), [(1, 1), (0, 3)]),  # heads join the batch
        ((2, 3, 4), 0, 1, (1, 2, 3, 4), [(0, 1)]),  # heads leave the batch
        ((3, 1, 8), 1, 1, (3, 8), [(0, 3), (1, 1)]),  # the batch joins the sequence axis before it
        ((3, 8), 0, 3, (3, 1, 8), [(1, 1)]),  # the two are split again
        ((6, 8), 0, 3, (6, 2, 4), [(0, 3)]),  # an axis of 3 x batch x 2 stays together
        (("t", 1, 8), 1, 1, (8, 8), []),  # the size of an axis before the batch is unknown
        ((5, 1), 1, 1, (3, 2), []),  # another number of elements
    ],
)
def test_where_the_batch_goes_in_a_reshape(
    data: tuple[Any, ...], axis: int, outer: int, sizes: tuple[int | None, ...], places: list[Any]
) -> None:
    known = tuple(size if isinstance(size, int) else None for size in data)
    assert places_after_reshape(known, axis, outer, sizes) == places


def test_a_reshape_of_weights_is_left_alone(tmp_path: Path) -> None:
    nodes = [batch_models.node("Reshape", "w shape", "w2"), batch_models.node("MatMul", "x w2", "y")]
    constants = {"w": batch_models.draw(1, 12), "shape": batch_models.ints(4, 3)}
    path = batch_models.write(tmp_path / "m.onnx", nodes, {"x": [1, 4]}, {"y": [1, 3]}, constants)
    words, before, after = freed(path)
    assert words == ""
    assert_rows_equal_single_runs(before, after)


def test_a_target_with_a_second_axis_that_varies_keeps_it(tmp_path: Path) -> None:
    nodes = [batch_models.node("Reshape", "x target", "y")]
    path = batch_models.write(
        tmp_path / "m.onnx",
        nodes,
        {"x": [1, "t", 6]},
        {"y": [1, "t", 2, 3]},
        {"target": batch_models.ints(1, 0, 2, 3)},
    )
    words, _, after = freed(path)
    assert words == "1 Reshape"
    x = batch_models.draw(2, 5, 6)
    np.testing.assert_array_equal(ReferenceEvaluator(after).run(None, {"x": x})[0], x.reshape(2, 5, 2, 3))  # type: ignore[index]
