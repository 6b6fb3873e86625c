"""Build one engine with TensorRT or TensorRT-RTX, strongly typed, from an ONNX file that holds its precision.

The precision in which an engine really computes is read from its inspector's description.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from loadgen.errors import UserError
from model_repo.runtime.tritune_gpu.tensorrt_engine import import_tensorrt
from optimizer.engines.cache import EngineKey

TensorRtBackend = Literal["tensorrt", "tensorrt_rtx"]
BACKENDS: tuple[TensorRtBackend, ...] = get_args(TensorRtBackend)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRt:
    """An installed library. `module` is its Python API."""

    backend: TensorRtBackend
    module: Any
    version: str


def find_tensorrt(backend: TensorRtBackend) -> TensorRt | None:
    """Return the library; None if it is not installed or does not load."""
    try:
        module = import_tensorrt(backend)
    except (ImportError, OSError, RuntimeError):  # OSError: a shared library that it needs is missing
        return None
    return TensorRt(backend=backend, module=module, version=str(module.__version__))


def installed_tensorrt() -> tuple[TensorRt, ...]:
    """Return all libraries that are installed."""
    found = (find_tensorrt(backend) for backend in BACKENDS)
    return tuple(library for library in found if library is not None)


HEAVY_LAYERS = ("CONVOLUTION", "DECONVOLUTION", "MATRIX_MULTIPLY")
"""Layers whose precision decides the speed; the others may stay in fp32 on purpose."""

TYPES = {"HALF": "fp16", "BF16": "bf16", "FLOAT": "fp32", "INT8": "int8", "FP8": "fp8"}

WORKSPACE_BYTES = 4 * 2**30
"""The most scratch memory that an engine may use."""

MIN_HEAVY_SHARE = 0.5
"""An engine is refused if less than half of its heavy layers compute in the wanted precision."""


class EngineFailed(UserError):
    """TensorRT cannot make this engine; other backends can still run the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltPlan:
    """A finished engine. `executed` counts its heavy layers by the precision they compute in."""

    plan: bytes
    executed: Mapping[str, int]
    timing_cache: bytes | None
    build_s: float


def build_plan(library: TensorRt, key: EngineKey, onnx_file: Path, *, timing_cache: bytes = b"") -> BuiltPlan:
    """Build the engine from the model's file, and verify its precision.

    Call this in a child process: it takes minutes in which Python handles no signals, and TensorRT swallows
    exceptions of its callbacks. Raises EngineFailed, which names the operator and node that cannot be parsed.
    """
    started = time.monotonic()
    trt = library.module
    log = _build_log(trt)
    builder = trt.Builder(log)
    network, nodes = _parsed(builder, log, library, key, onnx_file)
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, WORKSPACE_BYTES)
    (config.set_flag if key.precision == "tf32" else config.clear_flag)(trt.BuilderFlag.TF32)
    if library.backend == "tensorrt_rtx":  # TensorRT always builds for the GPU of this machine
        config.num_compute_capabilities = 1
        kinds = trt.ComputeCapability
        kind = getattr(kinds, f"SM{key.compute_capability.replace('.', '')}", kinds.CURRENT)
        config.set_compute_capability(kind, 0)
    if any(-1 in tuple(network.get_input(index).shape) for index in range(network.num_inputs)):
        for shapes in key.profiles:
            profile = builder.create_optimization_profile()
            for name, (least, usual, largest) in shapes.items():
                profile.set_shape(name, least, usual, largest)
            config.add_optimization_profile(profile)
    timings = None
    if library.backend == "tensorrt":  # TensorRT-RTX measures nothing while it builds
        timings = config.create_timing_cache(timing_cache)
        config.set_timing_cache(timings, ignore_mismatch=False)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        what = f"{onnx_file.name} in {key.precision}"
        raise EngineFailed(
            f"{library.backend} {library.version} cannot build {what}: {log.last_error()}",
            "ONNX Runtime can still serve the model; the log has the builder's own words.",
        )
    data = bytes(plan)
    executed = executed_precisions(
        layers_from_description(_description(trt, log, data)), frozenset(nodes), _type_of(key.precision)
    )
    _check(f"The engine built from {onnx_file.name}", key.precision, executed)
    return BuiltPlan(
        plan=data,
        executed=executed,
        timing_cache=None if timings is None else bytes(timings.serialize()),
        build_s=time.monotonic() - started,
    )


def _parsed(builder: Any, log: Any, library: TensorRt, key: EngineKey, onnx_file: Path) -> tuple[Any, list[str]]:
    """Return the network, and the names of its heavy layers."""
    trt = library.module
    # From TensorRT 11 on all networks are strongly typed, and the flag may be missing.
    strongly = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    network = builder.create_network(0 if strongly is None else 1 << int(strongly))
    parser = trt.OnnxParser(network, log)
    if not parser.parse_from_file(str(onnx_file)):
        raise EngineFailed(
            f"{library.backend} {library.version} cannot parse {onnx_file.name}: {_parse_error(parser)}",
            "ONNX Runtime can still serve the model; to use TensorRT, export it without this operator.",
        )
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    heavy = [layer for layer in layers if layer.type.name in HEAVY_LAYERS]
    if key.precision in ("int8", "fp8"):
        quantized = sum(layer.type.name == "QUANTIZE" for layer in layers)
        counts = {key.precision: quantized, "fp32": 0 if quantized else len(layers)}
        _check(f"The graph of {onnx_file.name}", key.precision, counts)
    elif heavy:
        types = (layer.get_input(0).dtype.name for layer in heavy)
        counts = Counter(TYPES.get(name, name.lower()) for name in types)
        _check(f"The graph of {onnx_file.name}", key.precision, counts)
    return network, [layer.name for layer in heavy]


def _parse_error(parser: Any) -> str:
    """Return the first error with its operator and node; later errors are its consequences."""
    if parser.num_errors == 0:
        return "no reason is given"
    error = parser.get_error(0)
    where = f"node {error.node_name() or error.node()} (operator {error.node_operator() or 'unknown'}): "
    return f"{where if error.node_operator() else ''}{_one_line(error.desc())}"


def _type_of(precision: str) -> str:
    """Return the tensors' type; tf32 is a way to multiply fp32 tensors."""
    return "fp32" if precision == "tf32" else precision


def _check(what: str, precision: str, counts: Mapping[str, int]) -> None:
    wanted, total = counts.get(_type_of(precision), 0), sum(counts.values())
    if not wanted >= MIN_HEAVY_SHARE * total or total == 0:
        found = ", ".join(f"{count} in {name}" for name, count in counts.items() if count)
        raise EngineFailed(
            f"{what} was to compute in {precision}; its heavy layers are: {found or 'none'}.",
            "The precision must be in the ONNX graph (casts, or Q/DQ nodes); this variant is left out.",
        )


def _description(trt: Any, log: Any, plan: bytes) -> str:
    """Return the engine's layers as text: from the builder's log, which needs no GPU, else from the inspector."""
    if log.layers:
        return str(log.layers)
    engine = trt.Runtime(log).deserialize_cuda_engine(plan)
    if engine is None:
        return ""
    return str(engine.create_engine_inspector().get_engine_information(trt.LayerInformationFormat.ONELINE))


def _build_log(trt: Any) -> Any:
    """Return a logger that keeps the errors and the list of layers."""

    class BuildLog(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []
            self.layers = ""

        def log(self, severity: Any, message: str) -> None:
            if severity <= trt.ILogger.Severity.ERROR:
                self.errors.append(message)
            elif message.startswith("Layers:\n"):
                self.layers = message

        def last_error(self) -> str:
            return _one_line(self.errors[-1]) if self.errors else "no reason is given"

    return BuildLog()


def _one_line(text: str) -> str:
    return " ".join(text.split())


_LAYER = re.compile(
    r"^Name: (?P<name>.*?), LayerType: (?P<kind>[^,]*), Inputs: (?P<inputs>.*?), Outputs: (?P<rest>.*)$"
)
_TENSOR = re.compile(r"Dimensions: \[([^\]]*)\], Format/Datatype: ([^}]*)")
_FORMAT = re.compile(r"Format/Datatype: ([^}]*)")
_NODE = re.compile(r"\[ONNX Layer: ([^\]]*)\]")
_PRECISIONS = (  # the first pattern that TensorRT's text for a tensor's format contains
    ("bf16", re.compile(r"bfloat16|bf16", re.IGNORECASE)),
    ("fp16", re.compile(r"\bhalf\b|\bfp16\b", re.IGNORECASE)),
    ("fp8", re.compile(r"\bfp8\b|\be4m3\b", re.IGNORECASE)),
    ("int8", re.compile(r"\bint8\b", re.IGNORECASE)),
    ("fp32", re.compile(r"\bfloat\b|\bfp32\b", re.IGNORECASE)),
)

BYTES_OF = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer of an engine: the precisions of its inputs, and the ONNX nodes that it contains.

    `tensors` are (precision or None, dimensions) of the tensors that it reads and writes, -1 for the batch.
    """

    name: str
    kind: str
    precisions: frozenset[str]
    nodes: tuple[str, ...]
    tensors: tuple[tuple[str | None, tuple[int, ...]], ...] = ()

    def bytes_moved(self, batch_size: int) -> int | None:
        """Return the bytes that it reads and writes without its weights; None if more than the batch is open.

        An element of a type that is not in `BYTES_OF` counts as four bytes.
        """
        if any(size < 0 for _, dims in self.tensors for size in dims[1:]):
            return None
        return sum(
            BYTES_OF.get(precision or "", 4) * math.prod(batch_size if size < 0 else size for size in dims)
            for precision, dims in self.tensors
        )


def layers_from_description(text: str) -> tuple[Layer, ...]:
    """Return the layers from the inspector's one-line format, also used in the builder's log; skip other lines."""
    found = (_LAYER.match(line.strip()) for line in text.splitlines())
    return tuple(
        Layer(
            name=match["name"],
            kind=match["kind"],
            precisions=frozenset(filter(None, map(_precision, _FORMAT.findall(match["inputs"])))),
            nodes=tuple(_NODE.findall(match["rest"])),
            tensors=tuple(
                (_precision(words), tuple(int(size) for size in dims.split(",") if size.strip()))
                for dims, words in _TENSOR.findall(f"{match['inputs']} {match['rest']}")
            ),
        )
        for match in found
        if match
    )


def executed_precisions(layers: tuple[Layer, ...], nodes: frozenset[str], wanted: str) -> Mapping[str, int]:
    """Return the number of these ONNX nodes per executed precision, the `wanted` one first.

    A node that TensorRT split or fused counts as `wanted` if any layer with a part of it reads that precision.
    If no layer names any of the nodes, all layers are counted instead.
    """
    by_node: dict[str, set[str]] = {}
    for layer in layers:
        for node in nodes.intersection(layer.nodes):
            by_node.setdefault(node, set()).update(layer.precisions)
    seen = list(by_node.values()) or [set(layer.precisions) for layer in layers if layer.precisions]
    counts = Counter(wanted if wanted in found else min(found, default="unknown") for found in seen)
    return dict(sorted(counts.items(), key=lambda item: (item[0] != wanted, item[0])))


def _precision(words: str) -> str | None:
    return next((name for name, pattern in _PRECISIONS if pattern.search(words)), None)
