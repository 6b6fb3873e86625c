"""Reshapes of every form, freed and compared with what numpy does to each sample."""

from itertools import pairwise

import numpy as np
import pytest
from batch_models import ints, node, write
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from optimizer.batching.rewrite import free_batch
from optimizer.model.files import load_proto


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """(dims of one sample, target with the batch of 1 baked in or folded into its first size)."""
    factors = draw(st.lists(st.sampled_from([1, 2, 3, 5]), min_size=2, max_size=4))
    parts = draw(st.lists(st.integers(1, len(factors)), min_size=1, max_size=3))
    edges = sorted({0, len(factors), *parts})
    grouped = [int(np.prod(factors[a:b])) for a, b in pairwise(edges)]
    folded = draw(st.booleans())
    return factors, (grouped if folded else [1, *grouped])


@given(case=reshapes(), batch=st.integers(2, 5))
@settings(max_examples=60, deadline=None)
def test_a_freed_reshape_does_to_a_batch_what_it_did_to_each_sample(
    tmp_path_factory: pytest.TempPathFactory, case: tuple[list[int], list[int]], batch: int
) -> None:
    dims, target = case
    path = tmp_path_factory.mktemp("reshape") / "m.onnx"
    write(path, [node("Reshape", "x target", "y")], {"x": [1, *dims]}, {"y": target}, {"target": ints(*target)})
    proto = load_proto(path)
    free_batch(proto, ["x"])
    rows = np.random.default_rng(0).standard_normal((batch, *dims)).astype(np.float32)
    (result,) = ReferenceEvaluator(proto).run(None, {"x": rows})
    expected = np.concatenate([row.reshape(target) for row in rows])
    np.testing.assert_array_equal(result, expected)
