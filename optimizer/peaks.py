"""The largest magnitudes inside of a model, seen on samples: what says whether fp16's range is enough."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.scratch import scratch_folder
from optimizer.delicate import FLOAT
from optimizer.onnx_files import write_model
from optimizer.onnx_run import RunFailed, run_model
from optimizer.shape_view import computed_from_inputs
from optimizer.tensor_types import tensor_types
from optimizer.weights import read_graph

if TYPE_CHECKING:
    from onnx import NodeProto

    from optimizer.onnx_model import Model
    from optimizer.samples import Samples

SAMPLES = 8


def observed_peaks(model: Model, samples: Samples) -> dict[str, float]:
    """The largest magnitude in each fp32 result inside of the model, over some samples; empty if that fails.

    Where samples differ a lot, others will give larger ones.
    """
    import onnx

    proto = read_graph(model)
    types = tensor_types(proto)
    results = computed_from_inputs(proto.graph) & {name for node in proto.graph.node for name in node.output}
    watched = {name: f"{name}__peak" for name in results if types.get(name) == FLOAT}
    for name, peak in watched.items():
        proto.graph.node.extend(_peak_nodes(name, peak))
        proto.graph.output.append(onnx.helper.make_tensor_value_info(peak, FLOAT, []))
    with scratch_folder("peaks") as folder:
        copy = Path(folder, "model.onnx")
        try:
            write_model(proto, copy, dict(model.external))
            seen = run_model(copy, samples.first(SAMPLES).feeds(1))
        except (RunFailed, OSError, ValueError):
            return {}
    return {name: max(float(result[peak]) for result in seen) for name, peak in watched.items()}


def _peak_nodes(name: str, peak: str) -> tuple[NodeProto, NodeProto]:
    from onnx import helper

    size = helper.make_node("Abs", [name], [f"{peak}_size"], name=f"{peak}/abs")
    return size, helper.make_node("ReduceMax", [f"{peak}_size"], [peak], name=f"{peak}/max", keepdims=0)
