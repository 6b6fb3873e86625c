"""Write a small transformer encoder to ONNX: int64 tokens and their mask in, a sentence vector out.

    python examples/small_transformer.py small_transformer.onnx

It is a small sentence-embedding model (BERT with mean pooling): two int64 inputs, a dynamic batch and a dynamic
sequence axis. `optimize` needs the length of the sentences: `--shape input_ids:128`.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

VOCABULARY, LONGEST = 2000, 512
WIDTH, HEADS, LAYERS = 128, 4, 2
SEED = 0


@dataclass
class Graph:
    """Collects nodes and weights; every method returns the name of its result."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(SEED))

    def add(self, kind: str, *inputs: str, name: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=f"{name}/{kind}", **attributes))
        return name

    def weight(self, name: str, *shape: int) -> str:
        values = self.random.standard_normal(shape) / np.sqrt(shape[0] if len(shape) > 1 else 100)
        return self.constant(name, values.astype(np.float32))

    def constant(self, name: str, values: object) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def linear(self, tensor: str, inputs: int, outputs: int, *, name: str) -> str:
        product = self.add(
            "MatMul", tensor, self.weight(f"{name}.weight", inputs, outputs), name=f"{name}.product"
        )
        return self.add("Add", product, self.weight(f"{name}.bias", outputs), name=name)

    def normalized(self, tensor: str, *, name: str) -> str:
        ones = self.constant(f"{name}.scale", np.ones(WIDTH, np.float32))
        return self.add("LayerNormalization", tensor, ones, self.weight(f"{name}.bias", WIDTH), name=name, axis=-1)


def embedded(graph: Graph) -> str:
    """Add token vectors plus position vectors, (batch, sequence, width)."""
    tokens = graph.add("Gather", graph.weight("tokens", VOCABULARY, WIDTH), "input_ids", name="token_vectors")
    length = graph.add("Shape", "input_ids", name="length", start=1, end=2)
    start = graph.constant("zero", np.array([0], np.int64))
    positions = graph.add(
        "Slice", graph.weight("positions", LONGEST, WIDTH), start, length, start, name="position_vectors"
    )
    return graph.normalized(graph.add("Add", tokens, positions, name="vectors"), name="embedded")


def heads_of(graph: Graph, tensor: str, *, name: str, order: list[int]) -> str:
    """Split (batch, sequence, width) into one matrix per head, with axes in `order`."""
    projected = graph.linear(tensor, WIDTH, WIDTH, name=f"{name}.linear")
    parted = graph.add("Reshape", projected, "by_head", name=f"{name}.parted")
    return graph.add("Transpose", parted, name=name, perm=order)


def attended(graph: Graph, tensor: str, *, name: str) -> str:
    query = heads_of(graph, tensor, name=f"{name}.query", order=[0, 2, 1, 3])
    key = heads_of(graph, tensor, name=f"{name}.key", order=[0, 2, 3, 1])
    value = heads_of(graph, tensor, name=f"{name}.value", order=[0, 2, 1, 3])
    likeness = graph.add("MatMul", query, key, name=f"{name}.likeness")
    scaled = graph.add("Mul", likeness, "attention_scale", name=f"{name}.scaled")
    masked = graph.add("Add", scaled, "masking", name=f"{name}.masked")
    shares = graph.add("Softmax", masked, name=f"{name}.shares", axis=-1)
    mixed = graph.add("MatMul", shares, value, name=f"{name}.mixed")
    together = graph.add("Transpose", mixed, name=f"{name}.together", perm=[0, 2, 1, 3])
    joined = graph.add("Reshape", together, "joined_heads", name=f"{name}.joined")
    return graph.linear(joined, WIDTH, WIDTH, name=f"{name}.output")


def encoded(graph: Graph, tensor: str, *, name: str) -> str:
    """Add one encoder layer: attention and a two-layer network, each with its own shortcut."""
    attention = attended(graph, tensor, name=f"{name}.attention")
    middle = graph.normalized(graph.add("Add", tensor, attention, name=f"{name}.sum1"), name=f"{name}.norm1")
    wide = graph.add("Relu", graph.linear(middle, WIDTH, 4 * WIDTH, name=f"{name}.wide"), name=f"{name}.relu")
    narrow = graph.linear(wide, 4 * WIDTH, WIDTH, name=f"{name}.narrow")
    return graph.normalized(graph.add("Add", middle, narrow, name=f"{name}.sum2"), name=f"{name}.norm2")


def pooled(graph: Graph, tensor: str) -> str:
    """Add the mean of the vectors of unmasked tokens, (batch, width)."""
    weights = graph.add("Unsqueeze", "mask", "last", name="weights")
    weighted = graph.add("Mul", tensor, weights, name="weighted")
    total = graph.add("ReduceSum", weighted, "middle", name="total", keepdims=0)
    count = graph.add("ReduceSum", weights, "middle", name="count", keepdims=0)
    return graph.add("Div", total, graph.add("Max", count, "one", name="count1"), name="sentence_embedding")


def small_transformer() -> onnx.ModelProto:
    graph = Graph()
    graph.constant("by_head", np.array([0, 0, HEADS, WIDTH // HEADS], np.int64))
    graph.constant("joined_heads", np.array([0, 0, WIDTH], np.int64))
    graph.constant("attention_scale", np.float32(1 / np.sqrt(WIDTH / HEADS)))
    graph.constant("one", np.float32(1))
    graph.constant("far", np.float32(1e4))
    graph.constant("middle", np.array([1], np.int64))
    graph.constant("last", np.array([2], np.int64))
    graph.constant("head_axes", np.array([1, 2], np.int64))
    mask = graph.add("Cast", "attention_mask", name="mask", to=TensorProto.FLOAT)
    spread = graph.add("Unsqueeze", mask, "head_axes", name="spread")
    graph.add("Mul", graph.add("Sub", spread, "one", name="blocked"), "far", name="masking")
    tensor = embedded(graph)
    for layer in range(LAYERS):
        tensor = encoded(graph, tensor, name=f"layer{layer}")
    pooled(graph, tensor)
    tokens = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"])
        for name in ("input_ids", "attention_mask")
    ]
    vectors = [helper.make_tensor_value_info("sentence_embedding", TensorProto.FLOAT, ["batch", WIDTH])]
    whole = helper.make_graph(graph.nodes, "small_transformer", tokens, vectors, graph.weights)
    return helper.make_model(whole, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def main(path: Path) -> None:
    model = small_transformer()
    onnx.checker.check_model(model, full_check=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="the file to write")
    main(parser.parse_args().path)
