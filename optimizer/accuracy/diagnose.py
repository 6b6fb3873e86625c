"""Find the first node at which a variant diverges from the fp32 model, and the outputs of a classifier."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.processes import scratch_folder
from optimizer.accuracy.check import shortcoming
from optimizer.accuracy.metrics import closeness
from optimizer.accuracy.thresholds import Thresholds
from optimizer.batching.inner_tensors import common_inner_tensors, write_exposing
from optimizer.child import call_limited
from optimizer.errors import RunFailed, UnsupportedModel
from optimizer.machine.child_limits import graph_limits
from optimizer.model.onnx_model import Model
from optimizer.model.ort_child import run_model
from optimizer.model.samples import Samples, feeds_for

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


COMPARED_SAMPLES = 2
COMPARED_ELEMENTS = 8192
"""At most 8192 elements of each sample and result are compared; all of them would fill the memory."""


def first_diverging_node(model: Model, variant: Model, samples: Samples, thresholds: Thresholds) -> str | None:
    """Return the first node, in order of computation, whose result misses the thresholds of the outputs, in words.

    Only nodes whose results have the same name in both graphs can be compared. None if all of them are close
    enough, or if the graphs cannot be run that way. The graphs are parsed in a child process with limits.
    """
    few = samples.first(COMPARED_SAMPLES)
    try:
        return call_limited(
            partial(_first_diverging_node, model, variant, few, thresholds),
            model=model.path,
            limits=graph_limits(model.size_bytes),
        )
    except UnsupportedModel:
        return None


def _first_diverging_node(model: Model, variant: Model, few: Samples, thresholds: Thresholds) -> str | None:
    names = common_inner_tensors(variant.graph.outline, model.graph.outline)
    feed = few.feeds(COMPARED_SAMPLES)[:1]
    with scratch_folder("inner") as folder:
        results = []
        for number, one in enumerate((model, variant)):
            copy = Path(folder, str(number), "model.onnx")
            try:
                write_exposing(one, names, copy)
                results.append(
                    run_model(copy, feeds_for(one, feed), thinned_to=COMPARED_ELEMENTS, optimized=False)[0]
                )
            except (RunFailed, OSError):
                return None
    only_distance = replace(thresholds, top1=None, max_error=None)
    for node in variant.graph.outline.graph.node:
        name = node.output[0]
        if any(name not in result for result in results):
            continue
        problem = shortcoming(closeness([results[0][name]], [results[1][name]], classes=False), only_distance)
        if problem:
            return f"{node.name or name} ({node.op_type}): {problem}"
    return None
