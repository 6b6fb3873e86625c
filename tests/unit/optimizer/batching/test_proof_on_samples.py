"""Tests of proofs on samples that the user gives."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from optimizer.batching.dynamic_batch import dynamic_batch
from optimizer.model.onnx_model import read_model


def stump(path: Path, *, mixes: bool = False) -> Path:
    """Write a tree with one split, at 1000, whose output no random input changes; `mixes`: it adds up the rows."""
    tree: dict[str, Any] = {
        "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0, 0, 0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"], "nodes_values": [1000.0, 0.0, 0.0],
        "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0],
        "target_treeids": [0, 0], "target_nodeids": [1, 2], "target_ids": [0, 0], "target_weights": [1.0, 5.0],
    }  # fmt: skip
    made = "t" if mixes else "y"
    nodes = [helper.make_node("TreeEnsembleRegressor", ["x"], [made], domain="ai.onnx.ml", n_targets=1, **tree)]
    constants = []
    if mixes:
        nodes.append(helper.make_node("CumSum", ["t", "axis"], ["y"]))
        constants.append(helper.make_tensor("axis", TensorProto.INT64, [], [0]))
    tensors = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", size]) for n, size in (("x", 2), ("y", 1))
    ]
    graph = helper.make_graph(nodes, "stump", tensors[:1], tensors[1:], constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def test_samples_of_the_user_prove_what_random_ones_cannot(tmp_path: Path) -> None:
    rows = np.zeros((40, 2), np.float32)
    rows[20:, 0] = 2000.0
    np.savez(tmp_path / "x.npz", x=rows)
    np.savez(tmp_path / "alike.npz", x=rows[:20])
    for data in (None, tmp_path / "alike.npz"):
        without = dynamic_batch(read_model(stump(tmp_path / "s.onnx")), tmp_path / "work", data)
        assert without.action == "unbatched"
    done = dynamic_batch(read_model(tmp_path / "s.onnx"), tmp_path / "work", tmp_path / "x.npz")
    assert (done.action, done.model.batch) == ("kept", "dynamic")
    assert "--input-data" in done.reason
    mixed = dynamic_batch(
        read_model(stump(tmp_path / "m.onnx", mixes=True)), tmp_path / "work", tmp_path / "x.npz"
    )
    assert mixed.action == "unbatched"
    assert "differently" in mixed.reason
