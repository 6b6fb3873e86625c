"""Which outputs of a model look like a classifier's: one score for each class."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

    from optimizer.onnx_model import Model

_LOOKS_THROUGH = {"Cast", "Identity", "Reshape", "Flatten", "Squeeze", "QuantizeLinear", "DequantizeLinear", "Add"}
_ENDS_CLASSIFIER = {"Softmax", "LogSoftmax", "Gemm", "MatMul"}
_NO_CLASSES = re.compile(r"embed|pool|feature|hidden|vector|encod", re.IGNORECASE)


def classifying_outputs(model: Model, graph: GraphProto) -> frozenset[str]:
    """Outputs of shape (batch, classes) that end in a softmax or a linear layer and are not called embeddings."""
    makers = {name: node for node in graph.node for name in node.output}
    rank = 2 if model.batch != "none" else 1
    return frozenset(
        tensor.name
        for tensor in model.all_outputs
        if len(tensor.dims) in {rank, 2}
        and tensor.sized[-1:] != (1,)
        and not _NO_CLASSES.search(tensor.name)
        and _ends(makers, tensor.name) in _ENDS_CLASSIFIER
    )


def _ends(makers: dict[str, NodeProto], name: str) -> str:
    """The operator that made a tensor, seen through those that change little."""
    for _ in range(len(makers)):
        node = makers.get(name)
        if node is None or node.op_type not in _LOOKS_THROUGH:
            return node.op_type if node is not None else ""
        name = next((source for source in node.input if source in makers), "")
    return ""
