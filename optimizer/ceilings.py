"""What this machine does at most: the arithmetic of a large matrix product and the bytes of a large copy.

Both are run with the engine's number of threads, by ONNX Runtime: "at most" is what that gets out of the machine,
and not what a data sheet says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from search.engine_profile import CeilingsRecord

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from onnx import GraphProto

    from optimizer.onnx_run import Tensors

    Timer = Callable[[Path, Tensors], float | None]
    """Seconds that an ONNX file takes for a feed; None where it cannot be run."""

PRODUCT_SIZE = {"cpu": 768, "gpu": 8192}
COPIED_ELEMENTS = {"cpu": 2**24, "gpu": 2**28}
OPSET, IR_VERSION = 17, 8


def measured_ceilings(timer: Timer, folder: Path, *, precision: str, device: str) -> CeilingsRecord:
    """The ceilings for an engine of that precision. The models that are timed are written into `folder`."""
    size, elements = PRODUCT_SIZE[device], COPIED_ELEMENTS[device]
    product_s = timer(*_product(folder, size, precision, device))
    copy_s = timer(*_copy(folder, elements))
    return CeilingsRecord(
        flops_per_s=2.0 * size**3 / product_s if product_s else None,
        bytes_per_s=2.0 * 4 * elements / copy_s if copy_s else None,
    )


def _product(folder: Path, size: int, precision: str, device: str) -> tuple[Path, Tensors]:
    """A square matrix product in the types in which an engine of that precision multiplies on this device."""
    from onnx import TensorProto, helper

    shape = (size, size)
    if precision == "int8":
        feed: Tensors = {"a": np.ones(shape, np.uint8), "b": np.ones(shape, np.int8)}
        node = helper.make_node("MatMulInteger", ["a", "b"], ["y"])
        types = (TensorProto.UINT8, TensorProto.INT8, TensorProto.INT32)
    else:
        half = device == "gpu" and precision in {"fp16", "bf16", "fp8"}  # of equal speed on a GPU; CPUs use fp32
        dtype, kind = (np.float16, TensorProto.FLOAT16) if half else (np.float32, TensorProto.FLOAT)
        feed = {"a": np.ones(shape, dtype), "b": np.ones(shape, dtype)}
        node, types = helper.make_node("MatMul", ["a", "b"], ["y"]), (kind, kind, kind)
    names = ("a", "b", "y")
    values = [helper.make_tensor_value_info(name, kind, shape) for name, kind in zip(names, types, strict=True)]
    return _written(folder / "product.onnx", helper.make_graph([node], "product", values[:2], values[2:])), feed


def _copy(folder: Path, elements: int) -> tuple[Path, Tensors]:
    from onnx import TensorProto, helper

    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (elements,)) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "copy", values[:1], values[1:])
    return _written(folder / "copy.onnx", graph), {"x": np.ones(elements, np.float32)}


def _written(path: Path, graph: GraphProto) -> Path:
    import onnx

    opsets = [onnx.helper.make_opsetid("", OPSET)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION), path)
    return path
