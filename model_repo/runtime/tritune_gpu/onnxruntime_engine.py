"""ONNX models on ONNX Runtime's CUDA provider, bound to our device memory."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime as ort

from .engine import Port, Shapes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DTYPES = {
    "tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64,
    "tensor(bool)": np.bool_, "tensor(int8)": np.int8, "tensor(int16)": np.int16, "tensor(int32)": np.int32,
    "tensor(int64)": np.int64, "tensor(uint8)": np.uint8, "tensor(uint16)": np.uint16,
    "tensor(uint32)": np.uint32, "tensor(uint64)": np.uint64,
}  # fmt: skip

MAX_SESSIONS = 16
"""Sessions of one engine, each with the model's weights on the GPU. Shapes beyond share the first."""

_CONVOLUTIONS = (b"\x22\x04Conv", b"\x22\x0dConvTranspose")
"""The operators as they stand in an ONNX file: `op_type` is field 4 of a node, then its length and name."""

_RUNS_UNTIL_CAPTURED = 2
"""The first run allocates memory; the second records the graph and replays it."""


class OnnxRuntimeEngine:
    """A model on one GPU and one stream. Never falls back from GPU to CPU silently.

    A session plans its convolutions anew whenever its shapes change, however often it has seen them: 0.1 to 1.8 s
    for EfficientNet-B0 on an H100 (ONNX Runtime 1.31). So each set of shapes has a session of its own, unless
    CUDA graphs replay them or the model has no convolutions.
    """

    batch_sizes: tuple[int, ...] = ()

    def __init__(self, model: Path, *, device: int, stream: int, cuda_graphs: bool, tf32: bool = False) -> None:
        if hasattr(ort, "preload_dlls"):
            ort.preload_dlls()
        options = ort.SessionOptions()
        options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
        options.intra_op_num_threads = 1  # the CPU only launches
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        cuda = {
            "device_id": str(device),
            "user_compute_stream": str(stream),
            "enable_cuda_graph": str(int(cuda_graphs)),
            "use_tf32": str(int(tf32)),
            # As fast as the default search on that model, and ready in a third of the time.
            "cudnn_conv_algo_search": "HEURISTIC",
            "arena_extend_strategy": "kSameAsRequested",
        }

        def opened() -> ort.InferenceSession:
            return ort.InferenceSession(
                str(model), options, providers=[("CUDAExecutionProvider", cuda), "CPUExecutionProvider"]
            )

        self._session, self._opened, self._sessions = opened(), opened, 0
        self._one_each = not cuda_graphs and convolves(model)
        if self._session.get_providers()[0] != "CUDAExecutionProvider":
            raise RuntimeError(
                f"ONNX Runtime has no working CUDA provider, it offers {self._session.get_providers()}"
            )
        self.inputs = tuple(_port(value) for value in self._session.get_inputs())
        self.outputs = tuple(_port(value) for value in self._session.get_outputs())
        self.captures_itself = cuda_graphs
        self._device = device
        self._graphs = 0

    def bind(self, shapes: Shapes, addresses: Mapping[str, int]) -> OnnxRuntimeBound:
        """Bind the inputs and execute once, because only that gives the outputs' shapes."""
        session = self._session_of_its_own() if self._one_each else self._session
        binding = session.io_binding()
        for port in self.inputs:
            shape, address = list(shapes[port.name]), addresses[port.name]
            binding.bind_input(port.name, "cuda", self._device, port.dtype.type, shape, address)
        for port in self.outputs:
            binding.bind_output(port.name, "cuda", self._device)
        session.run_with_iobinding(binding, _run_options(graph=-1))
        found = [tuple(value.shape()) for value in binding.get_outputs()]
        output_shapes = {port.name: shape for port, shape in zip(self.outputs, found, strict=True)}
        binding.clear_binding_outputs()
        self._graphs += 1
        graph = self._graphs if self.captures_itself else -1
        return OnnxRuntimeBound(session, binding, self.outputs, output_shapes, self._device, graph)

    def _session_of_its_own(self) -> ort.InferenceSession:
        """Return a session for one set of shapes: the first one, then new ones."""
        self._sessions += 1
        return self._opened() if 1 < self._sessions <= MAX_SESSIONS else self._session


def convolves(model: Path) -> bool:
    """True if an ONNX file has convolutions; also if its weights happen to look like one."""
    with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return any(content.find(operator) >= 0 for operator in _CONVOLUTIONS)


class OnnxRuntimeBound:
    """See `engine.Bound`. `graph` is the number of its CUDA graph in the session, -1 for none."""

    def __init__(
        self, session: Any, binding: Any, outputs: tuple[Port, ...], output_shapes: Shapes, device: int, graph: int
    ) -> None:
        self.output_shapes = output_shapes
        self._session = session
        self._binding = binding
        self._outputs = outputs
        self._device = device
        self._graph = graph
        self._options = _run_options(graph=graph)

    def put_outputs(self, addresses: Mapping[str, int]) -> None:
        """Bind the outputs; record the graph if there is one to record."""
        for port in self._outputs:
            shape, address = list(self.output_shapes[port.name]), addresses[port.name]
            self._binding.bind_output(port.name, "cuda", self._device, port.dtype.type, shape, address)
        if self._graph >= 0:
            for _ in range(_RUNS_UNTIL_CAPTURED):
                self._session.run_with_iobinding(self._binding, self._options)

    def enqueue(self, stream: int) -> None:  # noqa: ARG002 - the session keeps its own stream for life
        """See `engine.Bound`."""
        self._session.run_with_iobinding(self._binding, self._options)


def _run_options(*, graph: int) -> Any:
    """Return options without a wait at the end of the run: the copy out follows on the same stream."""
    options = ort.RunOptions()
    options.add_run_config_entry("gpu_graph_id", str(graph))
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    return options


def _port(value: Any) -> Port:
    if value.type not in DTYPES:
        raise RuntimeError(f"{value.name} is a {value.type}, which cannot be bound to GPU memory here.")
    return Port(name=value.name, dtype=np.dtype(DTYPES[value.type]))
