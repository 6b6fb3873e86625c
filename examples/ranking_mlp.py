"""Write a ranking model to ONNX: 512 features of an item in, one score out, dynamic batch.

    python examples/ranking_mlp.py ranking_mlp.onnx

Dense layers of 50 MB in all, as recommenders have. An execution reads every weight, whether for one item or for
sixteen, so that batches are cheap, and Triton's default batches at most four. Weights are drawn from a fixed seed
and scaled so that signals neither die nor explode (He et al., 2015).
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTHS = (512, 3072, 3072, 512, 1)
SEED = 0


def ranking_mlp() -> onnx.ModelProto:
    """Return dense layers with ReLU between them, and a sigmoid."""
    random = np.random.default_rng(SEED)
    weights: list[onnx.TensorProto] = []
    nodes: list[onnx.NodeProto] = []
    tensor = "features"
    for index, (inputs, outputs) in enumerate(pairwise(WIDTHS), start=1):
        values = (random.standard_normal((inputs, outputs)) * np.sqrt(2 / inputs)).astype(np.float32)
        weights += [
            numpy_helper.from_array(values, f"dense{index}_w"),
            numpy_helper.from_array(np.zeros(outputs, np.float32), f"dense{index}_b"),
        ]
        nodes.append(
            helper.make_node(
                "Gemm", [tensor, f"dense{index}_w", f"dense{index}_b"], [f"dense{index}"], name=f"dense{index}"
            )
        )
        tensor = f"dense{index}"
        if index < len(WIDTHS) - 1:
            nodes.append(helper.make_node("Relu", [tensor], [f"relu{index}"], name=f"relu{index}"))
            tensor = f"relu{index}"
    nodes.append(helper.make_node("Sigmoid", [tensor], ["score"], name="sigmoid"))
    graph = helper.make_graph(
        nodes,
        "ranking_mlp",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["batch", WIDTHS[0]])],
        [helper.make_tensor_value_info("score", TensorProto.FLOAT, ["batch", WIDTHS[-1]])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def main(path: Path) -> None:
    model = ranking_mlp()
    onnx.checker.check_model(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    print(f"{path}: {path.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="the file to write")
    main(parser.parse_args().path)
