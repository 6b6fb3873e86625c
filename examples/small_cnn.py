"""Write a small convolutional network to ONNX: 3 x 64 x 64 images in, 10 scores out, dynamic batch.

    python examples/small_cnn.py small_cnn.onnx

Weights are drawn from a fixed seed and scaled so that signals neither die nor explode (He et al., 2015). An image
takes one to three ms on one core of a current server, so that batching, threads and instances all matter.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

LAYERS = (  # output channels, kernel, stride
    (32, 3, 1),
    (32, 3, 1),
    (32, 3, 1),
    (48, 3, 2),
    (48, 3, 1),
    (64, 3, 2),
)
CLASSES = 10
SEED = 0


def small_cnn() -> onnx.ModelProto:
    """Return convolutions with ReLU, a global average, and a linear layer with softmax."""
    random = np.random.default_rng(SEED)
    weights: list[onnx.TensorProto] = []
    nodes: list[onnx.NodeProto] = []

    def weight(name: str, *shape: int) -> str:
        inputs = int(np.prod(shape[1:])) if len(shape) > 1 else 1
        scale = np.sqrt(2 / inputs) if len(shape) > 1 else 0.1
        values = (random.standard_normal(shape) * scale).astype(np.float32)
        weights.append(numpy_helper.from_array(values, name))
        return name

    tensor, channels = "image", 3
    for index, (width, kernel, stride) in enumerate(LAYERS, start=1):
        parameters = [weight(f"conv{index}_w", width, channels, kernel, kernel), weight(f"conv{index}_b", width)]
        nodes += [
            helper.make_node(
                "Conv",
                [tensor, *parameters],
                [f"conv{index}"],
                name=f"conv{index}",
                strides=[stride, stride],
                pads=[kernel // 2] * 4,
            ),
            helper.make_node("Relu", [f"conv{index}"], [f"relu{index}"], name=f"relu{index}"),
        ]
        tensor, channels = f"relu{index}", width
    parameters = [weight("linear_w", CLASSES, channels), weight("linear_b", CLASSES)]
    nodes += [
        helper.make_node("GlobalAveragePool", [tensor], ["pooled"], name="pool"),
        helper.make_node("Flatten", ["pooled"], ["features"], name="flatten", axis=1),
        helper.make_node("Gemm", ["features", *parameters], ["scores"], name="linear", transB=1),
        helper.make_node("Softmax", ["scores"], ["probabilities"], name="softmax", axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "small_cnn",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, 64, 64])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", CLASSES])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def main(path: Path) -> None:
    model = small_cnn()
    onnx.checker.check_model(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="the file to write")
    main(parser.parse_args().path)
