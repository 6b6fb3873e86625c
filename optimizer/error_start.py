"""Where in its graph a variant departs from the fp32 model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.scratch import scratch_folder
from optimizer.accuracy import shortcoming
from optimizer.closeness import closeness
from optimizer.inner_tensors import common_inner_tensors, write_exposing
from optimizer.onnx_files import load_proto
from optimizer.onnx_run import RunFailed, run_model
from optimizer.samples import feeds_for

if TYPE_CHECKING:
    from optimizer.onnx_model import Model
    from optimizer.samples import Samples
    from optimizer.thresholds import Thresholds

SAMPLES = 2
INNER_ELEMENTS = 8192
"""Of each sample and result; all of them would fill the memory."""


def first_wrong_node(model: Model, variant: Model, samples: Samples, thresholds: Thresholds) -> str | None:
    """The first node, in the order of computation, whose result misses the thresholds of the outputs, in words.

    Only nodes whose results have the same name in both graphs can be compared. None where all of them are close
    enough, or the graphs cannot be run that way.
    """
    proto = load_proto(variant.path)
    names = common_inner_tensors(proto, load_proto(model.path))
    feed = samples.first(SAMPLES).feeds(SAMPLES)[:1]
    with scratch_folder("inner") as folder:
        results = []
        for number, one in enumerate((model, variant)):
            copy = Path(folder, str(number), "model.onnx")
            try:
                write_exposing(one, names, copy)
                results.append(
                    run_model(copy, feeds_for(one, feed), thinned_to=INNER_ELEMENTS, optimized=False)[0]
                )
            except (RunFailed, OSError):
                return None
    only_distance = replace(thresholds, top1=None, max_error=None)
    for node in proto.graph.node:
        name = node.output[0]
        if any(name not in result for result in results):
            continue
        problem = shortcoming(closeness([results[0][name]], [results[1][name]], classes=False), only_distance)
        if problem:
            return f"{node.name or name} ({node.op_type}): {problem}"
    return None
