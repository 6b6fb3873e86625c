"""Q/DQ graphs for int8 and fp8, calibrated on samples; made in a process of its own, as that runs the model.

`python -m optimizer.quantize FOLDER` is that process. ONNX Runtime's quantizer finds ranges and places Q/DQ.
A GPU wants symmetric values around matrix products only, and biases and results left alone; ONNX Runtime's CPU
kernels want uint8 activations, and Q/DQ around what lies between two products too.
"""

from __future__ import annotations

import json
import logging
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from optimizer.child_limits import begin_as_child, machine_limits
from optimizer.errors import UnsupportedModel
from optimizer.onnx_check import plain, shortened
from optimizer.onnx_run import RunFailed, load_tensors, run_child, save_tensors

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from onnx import GraphProto

    from optimizer.onnx_run import Tensors
    from optimizer.precisions import CalibrationMethod
    from optimizer.samples import Samples


MOST_SAMPLES = 512
TIMEOUT_S = 1800.0
CHUNK = 8
"""Samples whose inner tensors are in memory at the same time."""

BINS = 1024
"""Of a tensor's histogram. ONNX Runtime's default for entropy, 128, is as coarse as int8: nothing is clipped."""

PERCENTILE = 99.99
LARGE_BYTES = 1 << 30
FOLDED_WEIGHTS = "folded.onnx.data"

PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
PASSED_THROUGH = (
    "Relu", "Clip", "MaxPool", "AveragePool", "GlobalAveragePool", "Concat", "Reshape", "Transpose", "Flatten",
    "Squeeze", "Unsqueeze",
)  # fmt: skip
"""What lies between products and runs on 8 bits on a CPU."""

CHILD = (sys.executable, "-P", "-m", "optimizer.quantize")


def quantize(
    path: Path,
    folder: Path,
    *,
    precision: Literal["int8", "fp8"],
    device: Literal["cpu", "gpu"],
    samples: Samples,
    method: CalibrationMethod,
    keep: Collection[str],
) -> Path:
    """Write a Q/DQ copy of the model at `path` into `folder`, and return its file.

    `keep` are names or operator types of nodes to leave in fp32. Raises UnsupportedModel.
    """
    used = samples.first(MOST_SAMPLES)
    save_tensors(folder / "samples.npz", used.arrays)
    request = {
        "model": str(path.absolute()),
        "precision": precision,
        "device": device,
        "batched": used.batched,
        "method": method,
        "keep": sorted(keep),
    }
    (folder / "request.json").write_text(json.dumps(request))
    try:
        run_child([*CHILD, str(folder)], TIMEOUT_S)
        reason = json.loads((folder / "answer.json").read_text())["reason"]
    except RunFailed as error:
        reason = error.reason
    if reason is not None:
        raise UnsupportedModel(
            f"The model cannot be quantized to {precision}: {shortened(plain(reason))}",
            f"Leave {precision} out of --precisions.",
        )
    return folder / "quantized" / "model.onnx"


def _child(folder: Path) -> None:
    reason = None
    try:
        with redirect_stdout(sys.stderr):
            _quantize(folder, json.loads((folder / "request.json").read_text()))
    except Exception as error:  # neither ONNX Runtime nor its quantizer has a common base for errors
        reason = str(error) or type(error).__name__
    (folder / "answer.json").write_text(json.dumps({"reason": reason}))


def _quantize(folder: Path, request: dict[str, Any]) -> None:
    import onnx
    from onnxruntime.quantization import QuantType
    from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
    from onnxruntime.quantization.quant_utils import load_model_with_shape_infer

    logging.disable(logging.WARNING)
    folded = _folded(Path(request["model"]), folder)
    graph = onnx.load_model(folded, load_external_data=False).graph
    large = (folder / FOLDED_WEIGHTS).exists()
    symmetric = request["device"] == "gpu" or request["precision"] == "fp8"
    kinds = list(PRODUCTS) if symmetric else [*PRODUCTS, *_passed_through(graph)]
    kept = {node.name for node in graph.node if {node.name, node.op_type} & set(request["keep"])}
    quantizer = QDQQuantizer(
        load_model_with_shape_infer(folded),
        True,  # per channel
        not symmetric and not _adds_wide(),  # 7 bits for weights
        QuantType.QInt8,
        QuantType.QInt8 if symmetric else QuantType.QUInt8,
        _ranges(folded, folder, kinds, request, symmetric=symmetric, large=large),
        [],
        sorted(kept | _without_weights(graph)),
        kinds,
        _options(symmetric=symmetric),
    )
    quantizer.quantize_model()
    target = folder / "quantized" / "model.onnx"
    target.parent.mkdir()
    quantizer.model.save_model_to_file(str(target), large)
    if request["precision"] == "fp8":
        from optimizer.fp8 import int8_to_fp8

        int8_to_fp8(target, folded)


def _folded(path: Path, folder: Path) -> Path:
    """The model with constants folded and normalizations merged into products; every node has a name."""
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
    return target


def _passed_through(graph: GraphProto) -> list[str]:
    """Additions too where they join branches of convolutions; those of transformers need more than 8 bits."""
    kinds = {node.op_type for node in graph.node}
    convolutional = "Conv" in kinds and not kinds & {"LayerNormalization", "Erf", "Gelu"}
    return [*PASSED_THROUGH, "Add"] if convolutional else list(PASSED_THROUGH)


def _without_weights(graph: GraphProto) -> set[str]:
    """Products of two results (attention), which lose more than they gain."""
    constants = {tensor.name for tensor in graph.initializer}
    return {node.name for node in graph.node if node.op_type in PRODUCTS and node.input[1] not in constants}


def _ranges(
    folded: Path, folder: Path, kinds: list[str], request: dict[str, Any], *, symmetric: bool, large: bool
) -> Any:
    """Run the model on the samples, some at a time; gives the range of every tensor that may be quantized."""
    from onnxruntime.quantization import CalibrationMethod as Method
    from onnxruntime.quantization.calibrate import create_calibrator

    calibrator = create_calibrator(
        folded,
        kinds,
        augmented_model_path=str(folder / "augmented.onnx"),
        calibrate_method=Method.Entropy if request["method"] == "entropy" else Method.Percentile,
        use_external_data_format=large,
        extra_options={"num_bins": BINS, "percentile": PERCENTILE, "symmetric": symmetric},
    )
    arrays = load_tensors(folder / "samples.npz")
    count = len(next(iter(arrays.values())))
    for start in range(0, count, CHUNK):
        rows = range(start, min(start + CHUNK, count))
        calibrator.collect_data(_Reader(_feeds(arrays, rows, batched=request["batched"])))
    return calibrator.compute_data()


def _feeds(arrays: Tensors, rows: range, *, batched: bool) -> Iterator[Tensors]:
    for row in rows:
        yield {name: array[row : row + 1] if batched else array[row] for name, array in arrays.items()}


class _Reader:
    """What ONNX Runtime's calibrators read from."""

    def __init__(self, feeds: Iterator[Tensors]) -> None:
        self._feeds = feeds

    def get_next(self) -> Tensors | None:
        """The next feed, None after the last."""
        return next(self._feeds, None)


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
    """Whether this CPU adds products of 8 bits without overflow (VNNI); others need weights of 7 bits."""
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "avx512_vnni" in flags or "avx_vnni" in flags


if __name__ == "__main__":
    begin_as_child(machine_limits())
    _child(Path(sys.argv[1]))
