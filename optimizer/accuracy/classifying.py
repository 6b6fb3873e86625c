"""Find the outputs of a classifier."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from optimizer.model.onnx_model import Model

if TYPE_CHECKING:
    from onnx import NodeProto


_LOOKS_THROUGH = {"Cast", "Identity", "Reshape", "Flatten", "Squeeze", "QuantizeLinear", "DequantizeLinear", "Add"}
_ENDS_CLASSIFIER = {"Softmax", "LogSoftmax", "Gemm", "MatMul"}
_NO_CLASSES = re.compile(r"embed|pool|feature|hidden|vector|encod", re.IGNORECASE)


def classifying_outputs(model: Model) -> frozenset[str]:
    """Return outputs of shape (batch, classes) that end in a softmax or a linear layer.

    Outputs with names like those of embeddings are left out.
    """
    makers = {name: node for node in model.graph.outline.graph.node for name in node.output}
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
    """Return the operator that made a tensor, seen through those that change little; "" if there is none."""
    for _ in range(len(makers)):
        node = makers.get(name)
        if node is None or node.op_type not in _LOOKS_THROUGH:
            return node.op_type if node is not None else ""
        name = next((source for source in node.input if source in makers), "")
    return ""
