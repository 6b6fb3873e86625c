"""Write Q/DQ graphs for int8 and fp8 (E4M3), calibrated in a child process, as calibration runs the model.

ONNX Runtime's quantizer finds ranges and places Q/DQ. A GPU needs symmetric values around matrix products only,
and biases and results unquantized; ONNX Runtime's CPU kernels need uint8 activations, and Q/DQ also around
operators between two products. fp8 has the places and ranges of a symmetric int8 graph, and other numbers.
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from optimizer.child import machine_limits
from optimizer.errors import RunFailed, UnsupportedModel
from optimizer.model.checks import plain, shortened
from optimizer.model.ort_child import run_in_child
from optimizer.model.samples import Samples
from optimizer.precision.names import CalibrationMethod

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TensorProto


LARGEST_INT8 = 127.0
LARGEST_E4M3 = 448.0


def int8_to_fp8(path: Path, source: Path) -> None:
    """Rewrite the Q/DQ graph at `path`, which was made from the fp32 model at `source`, in place.

    Scales shrink by 127 / 448 so that the same range is covered; weights are rounded from their fp32 values.
    """
    import onnx

    proto, to_array = onnx.load_model(path), onnx.numpy_helper.to_array
    weights = {tensor.name: to_array(tensor) for tensor in onnx.load_model(source).graph.initializer}
    tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
    done: set[str] = set()
    for node in proto.graph.node:
        if node.op_type not in {"QuantizeLinear", "DequantizeLinear"}:
            continue
        values, scale, zero = tensors.get(node.input[0]), tensors[node.input[1]], tensors[node.input[2]]
        if scale.name not in done:
            shrunk = to_array(scale) * np.float32(LARGEST_INT8 / LARGEST_E4M3)
            scale.CopyFrom(onnx.numpy_helper.from_array(shrunk, scale.name))
        if values is not None and values.name not in done:
            exact = weights[values.name.removesuffix("_quantized")]
            scaled = exact / _along(to_array(scale), node, exact.ndim)
            values.CopyFrom(_e4m3(np.clip(scaled, -LARGEST_E4M3, LARGEST_E4M3), values.name))
        if zero.name not in done:
            zero.CopyFrom(_e4m3(np.zeros(tuple(zero.dims)), zero.name))
        done.update((scale.name, zero.name, node.input[0] if values is not None else ""))
    del proto.graph.value_info[:]
    large = any(file != path for file in path.parent.iterdir())
    for file in path.parent.iterdir():
        file.unlink()
    onnx.save_model(proto, path, save_as_external_data=large, location=f"{path.name}.data")


def _along(scale: NDArray[np.float32], node: NodeProto, rank: int) -> NDArray[np.float32]:
    """Return the node's scale, one number or one per channel, ready to divide a tensor of that rank."""
    if scale.ndim == 0:
        return scale
    shape = [1] * rank
    shape[next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)] = -1
    return scale.reshape(shape)


def _e4m3(values: NDArray[np.floating[Any]], name: str) -> TensorProto:
    import ml_dtypes
    import onnx

    return onnx.numpy_helper.from_array(values.astype(ml_dtypes.float8_e4m3fn), name)


MAX_SAMPLES = 512
QUANTIZE_TIMEOUT_S = 1800.0
CHUNK = 8
"""The inner tensors of at most 8 samples are in memory at the same time."""

BINS = 1024
"""A tensor's histogram has 1024 bins. ONNX Runtime's default for entropy, 128, is as coarse as int8: nothing is
clipped."""

PERCENTILE = 99.99
LARGE_BYTES = 1 << 30
FOLDED_WEIGHTS = "folded.onnx.data"

PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
PASSED_THROUGH = (
    "Relu", "Clip", "MaxPool", "AveragePool", "GlobalAveragePool", "Concat", "Reshape", "Transpose", "Flatten",
    "Squeeze", "Unsqueeze",
)  # fmt: skip
"""Operators between products that run on 8 bits on a CPU."""


def quantize(
    path: Path,
    folder: Path,
    *,
    precision: Literal["int8", "fp8"],
    device: Literal["cpu", "gpu"],
    samples: Samples,
    method: CalibrationMethod,
) -> Path:
    """Write a Q/DQ copy of the model at `path` into `folder`, and return its file. Raises UnsupportedModel."""
    symmetric = device == "gpu" or precision == "fp8"
    few = samples.first(MAX_SAMPLES)
    call = partial(_quantized, path.absolute(), folder, few, method, symmetric=symmetric, fp8=precision == "fp8")
    try:
        run_in_child(call, limits=machine_limits(), timeout_s=QUANTIZE_TIMEOUT_S)
    except RunFailed as error:
        raise UnsupportedModel(
            f"The model cannot be quantized to {precision}: {shortened(plain(error.reason))}",
            f"Leave {precision} out of --precisions.",
        ) from error
    return folder / "quantized" / "model.onnx"


def _quantized(
    path: Path, folder: Path, samples: Samples, method: CalibrationMethod, *, symmetric: bool, fp8: bool
) -> None:
    try:
        target, folded = _quantize(path, folder, samples, method, symmetric=symmetric)
        if fp8:
            int8_to_fp8(target, folded)
    except Exception as error:  # neither ONNX Runtime nor its quantizer has a common base for errors
        raise RunFailed("run", str(error) or type(error).__name__) from error


def _quantize(
    path: Path, folder: Path, samples: Samples, method: CalibrationMethod, *, symmetric: bool
) -> tuple[Path, Path]:
    """Write the graph in int8; return its file, and that of the folded fp32 model of which it was made."""
    from onnxruntime.quantization import QuantType
    from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
    from onnxruntime.quantization.quant_utils import load_model_with_shape_infer

    logging.disable(logging.WARNING)
    folded, graph = _folded(path, folder)
    large = (folder / FOLDED_WEIGHTS).exists()
    kinds = list(PRODUCTS) if symmetric else [*PRODUCTS, *_passed_through(graph)]
    constants = {tensor.name for tensor in graph.initializer}
    # Products of two results (attention) lose more by being quantized than they gain.
    attention = (node for node in graph.node if node.op_type in PRODUCTS and node.input[1] not in constants)
    quantizer = QDQQuantizer(
        load_model_with_shape_infer(folded),
        True,  # per channel
        not symmetric and not _adds_wide(),  # 7 bits for weights
        QuantType.QInt8,
        QuantType.QInt8 if symmetric else QuantType.QUInt8,
        _ranges(folded, folder, kinds, samples, method, symmetric=symmetric, large=large),
        [],
        sorted({node.name for node in attention}),
        kinds,
        _options(symmetric=symmetric),
    )
    quantizer.quantize_model()
    target = folder / "quantized" / "model.onnx"
    target.parent.mkdir()
    quantizer.model.save_model_to_file(str(target), large)
    return target, folded


def _folded(path: Path, folder: Path) -> tuple[Path, GraphProto]:
    """Write the model with constants folded and normalizations merged into products; every node has a name."""
    import onnx
    import onnxruntime

    target = folder / "folded.onnx"
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(target)
    if sum(file.stat().st_size for file in path.parent.iterdir()) > LARGE_BYTES:
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", FOLDED_WEIGHTS)
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    proto = onnx.load_model(target, load_external_data=False)
    for index, node in enumerate(proto.graph.node):
        node.name = node.name or f"{node.op_type}_{index}"
    used = {"", *(node.domain for node in proto.graph.node)}
    opsets = [entry for entry in proto.opset_import if entry.domain in used]  # ONNX Runtime lists all it knows
    del proto.opset_import[:]
    proto.opset_import.extend(opsets)
    target.write_bytes(proto.SerializeToString())
    return target, proto.graph


def _passed_through(graph: GraphProto) -> list[str]:
    """Return the operators between products that are quantized on a CPU.

    Additions are among them if they join branches of convolutions; those of transformers need more than 8 bits.
    """
    kinds = {node.op_type for node in graph.node}
    convolutional = "Conv" in kinds and not kinds & {"LayerNormalization", "Erf", "Gelu"}
    return [*PASSED_THROUGH, "Add"] if convolutional else list(PASSED_THROUGH)


def _ranges(
    folded: Path,
    folder: Path,
    kinds: list[str],
    samples: Samples,
    method: CalibrationMethod,
    *,
    symmetric: bool,
    large: bool,
) -> Any:
    """Run the model on the samples, some at a time; return the range of every tensor that may be quantized."""
    from onnxruntime.quantization import CalibrationMethod as Method
    from onnxruntime.quantization.calibrate import create_calibrator

    calibrator = create_calibrator(
        folded,
        kinds,
        augmented_model_path=str(folder / "augmented.onnx"),
        calibrate_method=Method.Entropy if method == "entropy" else Method.Percentile,
        use_external_data_format=large,
        extra_options={"num_bins": BINS, "percentile": PERCENTILE, "symmetric": symmetric},
    )
    feeds = samples.feeds(1)
    for start in range(0, len(feeds), CHUNK):
        chunk = iter(feeds[start : start + CHUNK])
        calibrator.collect_data(SimpleNamespace(get_next=partial(next, chunk, None)))
    return calibrator.compute_data()


def _options(*, symmetric: bool) -> dict[str, Any]:
    both = {"WeightSymmetric": True, "MatMulConstBOnly": True, "QDQOpTypePerChannelSupportToAxis": {"MatMul": 1}}
    if not symmetric:
        return both
    return {
        **both,
        "ActivationSymmetric": True,
        "QuantizeBias": False,  # TensorRT takes biases as they are
        "OpTypesToExcludeOutputQuantization": list(PRODUCTS),  # so that activations fuse with products
    }


def _adds_wide() -> bool:
    """True if this CPU adds products of 8 bits without overflow (VNNI); others need weights of 7 bits."""
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "avx512_vnni" in flags or "avx_vnni" in flags
