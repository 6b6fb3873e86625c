"""The model.py of an ONNX model in Triton's Python backend: ONNX Runtime, one session per instance.

Copied as it is to `<model>/1/model.py`, so it imports nothing of ours. It reads these `parameters` of the model's
configuration: `model_file`, `intra_op_threads` (0: as many as there are processors), `allow_spinning` ("1": idle
threads of ONNX Runtime busy-wait for work).

It is also the embedded server's backend `onnxruntime`, for models as users configure them for Triton's own backend
of that name: the file is then `default_model_filename`, the threads are `intra_op_thread_count`, and instances of
`KIND_GPU` run on ONNX Runtime's CUDA provider.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # heeded at the import

import numpy as np
import onnxruntime as ort
import triton_python_backend_utils as pb_utils

Array = np.ndarray[Any, Any]

TIMELINE = os.environ.get("TRITUNE_TIMELINE")
"""The folder for ONNX Runtime's profiles, if `optimize profile` asks for some."""

_NUMPY_1 = np.lib.NumpyVersion(np.__version__) < "2.0.0"

_rename = ctypes.pythonapi.PyCapsule_SetName
_rename.argtypes = (ctypes.py_object, ctypes.c_char_p)
_TAKEN = b"used_dltensor"


class BatchBuffer:
    """Joins the same input of several requests, in memory that is reused.

    Fresh memory of more than 32 MB comes from the kernel and goes back with each batch, which doubles the time of
    the copy. The next call overwrites the array that `join` returns.
    """

    def __init__(self) -> None:
        self._memory = np.empty(0, dtype=np.uint8)

    def join(self, parts: list[Array]) -> Array:
        """Return the parts joined along their first axis. All have equal dtype and further axes."""
        if parts[0].dtype == np.object_:
            return text_from_bytes(np.concatenate(parts))
        if len(parts) == 1:
            return parts[0]
        shape = (sum(len(part) for part in parts), *parts[0].shape[1:])
        size_bytes = math.prod(shape) * parts[0].itemsize
        if size_bytes > len(self._memory):
            self._memory = np.empty(size_bytes, dtype=np.uint8)
        joined = self._memory[:size_bytes].view(parts[0].dtype).reshape(shape)
        return np.concatenate(parts, out=joined)


def text_from_bytes(array: Array) -> Array:
    """Return the texts of a BYTES tensor: Triton gives bytes, of which ONNX Runtime would take the repr."""
    texts = np.empty(array.shape, dtype=np.object_)
    texts.ravel()[:] = [element.decode() for element in array.ravel()]
    return texts


def output_tensor(name: str, array: Array) -> Any:
    """Return the tensor of a response. The stub of Triton 24.10 takes every array of numpy 2 for an empty one."""
    return pb_utils.Tensor(name, array) if _NUMPY_1 else tensor_by_dlpack(name, array)


def tensor_by_dlpack(name: str, array: Array) -> Any:
    """Return a tensor that shares the array's memory.

    The stub marks the capsule as taken with a name that numpy does not know: numpy then fails to free it, and
    Python prints a traceback, which takes some 0.15 ms per tensor.
    """
    capsule = array.__dlpack__()
    tensor = pb_utils.Tensor.from_dlpack(name, capsule)
    _rename(capsule, _TAKEN)
    return tensor


def thread_count(wanted: int) -> int:
    """Return the number of threads to ask for; 0 lets ONNX Runtime decide, which uses the whole machine.

    It then pins its threads to processors of its own choice, those outside of our affinity mask too (`taskset`):
    if the mask leaves some out, one thread for each that it has.
    """
    allowed = len(os.sched_getaffinity(0))
    return wanted if wanted or allowed == os.cpu_count() else allowed


def model_file(version_dir: Path, config: dict[str, Any], parameters: dict[str, str]) -> Path:
    """Return the model's file; of a folder, as Triton's own backend takes one, the `model.onnx` in it."""
    file = version_dir / (parameters.get("model_file") or config.get("default_model_filename") or "model.onnx")
    return file / "model.onnx" if file.is_dir() else file


def open_session(model_path: Path, parameters: dict[str, str], *, gpu: int | None = None) -> ort.InferenceSession:
    """Open a session on the CPU, or on a GPU by its number. Engines of ours on a GPU have `gpu_model` instead."""
    options = ort.SessionOptions()
    threads = parameters.get("intra_op_threads") or parameters.get("intra_op_thread_count", "0")
    options.intra_op_num_threads = thread_count(int(threads))
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.add_session_config_entry("session.intra_op.allow_spinning", parameters.get("allow_spinning", "0"))
    if TIMELINE:
        options.enable_profiling = True
        options.profile_file_prefix = f"{TIMELINE}/profile-{os.getpid()}"
    if gpu is None:
        return ort.InferenceSession(model_path, options, providers=["CPUExecutionProvider"])
    if hasattr(ort, "preload_dlls"):
        ort.preload_dlls()
    cuda = ("CUDAExecutionProvider", {"device_id": str(gpu)})
    session = ort.InferenceSession(model_path, options, providers=[cuda, "CPUExecutionProvider"])
    if session.get_providers()[0] != cuda[0]:  # it would run on the CPU without a word
        raise RuntimeError(f"ONNX Runtime has no working CUDA provider, it offers {session.get_providers()}")
    return session


class TritonPythonModel:
    """The interface to Triton's Python backend: `initialize` once per instance, then `execute` per batch."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the session. An exception fails the load; its text becomes the reason."""
        config = json.loads(args["model_config"])
        parameters = {name: value["string_value"] for name, value in config["parameters"].items()}
        file = model_file(Path(args["model_repository"], args["model_version"]), config, parameters)
        gpu = int(args["model_instance_device_id"]) if args["model_instance_kind"] == "GPU" else None
        self._session = open_session(file, parameters, gpu=gpu)
        self._inputs = {tensor["name"]: BatchBuffer() for tensor in config["input"]}
        self._outputs = [tensor["name"] for tensor in config["output"]]

    def execute(self, requests: list[Any]) -> list[Any]:
        """Return one response per request, in order. The requests have equal shapes past the batch."""
        try:
            return self._run(requests)
        except Exception as error:
            # Every error of the model is the response to the requests of this call.
            if len(requests) == 1:
                return [pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))]
            # One bad request must not fail the others: run each by itself to find it.
            return [response for request in requests for response in self.execute([request])]

    def finalize(self) -> None:
        """Write the profile, if there is one, under the time from which its times count: ns, monotonic."""
        if TIMELINE:
            began_ns = self._session.get_profiling_start_time_ns() - time.time_ns() + time.monotonic_ns()
            Path(self._session.end_profiling()).rename(Path(TIMELINE, f"cpu-{os.getpid()}-{began_ns}.json"))

    def _run(self, requests: list[Any]) -> list[Any]:
        feed, sizes = {}, [0]
        for name, buffer in self._inputs.items():
            tensors = [pb_utils.get_input_tensor_by_name(request, name) for request in requests]
            if None in tensors:  # an optional input, which Triton leaves out of whole batches
                continue
            parts = [tensor.as_numpy() for tensor in tensors]
            sizes = [len(part) if part.ndim else 1 for part in parts]
            feed[name] = buffer.join(parts)
        outputs = list(zip(self._outputs, self._session.run(self._outputs, feed), strict=True))
        if len(requests) == 1:
            tensors = [output_tensor(name, array) for name, array in outputs]
            return [pb_utils.InferenceResponse(output_tensors=tensors)]
        responses, start = [], 0
        for size in sizes:
            tensors = [output_tensor(name, array[start : start + size]) for name, array in outputs]
            responses.append(pb_utils.InferenceResponse(output_tensors=tensors))
            start += size
        return responses
