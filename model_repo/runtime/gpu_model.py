"""The model.py of a GPU engine in Triton's Python backend: TensorRT, TensorRT-RTX or ONNX Runtime, without torch.

Copied as it is to `<model>/1/model.py`, next to the folder `tritune_gpu`, so it imports nothing else of ours.
`tritune_gpu.opening` lists the `parameters` of the model's configuration that it reads.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

sys.path.insert(0, str(Path(__file__).parent))

from tritune_gpu.opening import open_runner

_NUMPY_1 = np.lib.NumpyVersion(np.__version__) < "2.0.0"

_rename = ctypes.pythonapi.PyCapsule_SetName
_rename.argtypes = (ctypes.py_object, ctypes.c_char_p)
_TAKEN = b"used_dltensor"


def _tensor(name: str, array: Any) -> Any:
    """Return the tensor of a response.

    The stub of Triton 24.10 takes every array of numpy 2 for an empty one, and fails on DLPack of numpy 1.
    """
    return pb_utils.Tensor(name, array) if _NUMPY_1 else _tensor_by_dlpack(name, array)


def _tensor_by_dlpack(name: str, array: Any) -> Any:
    """Return a tensor that shares the array's memory.

    The stub marks the capsule as taken with a name that numpy does not know: numpy then fails to free it, and
    Python prints a traceback, which takes some 0.15 ms per tensor.
    """
    capsule = array.__dlpack__()
    tensor = pb_utils.Tensor.from_dlpack(name, capsule)
    _rename(capsule, _TAKEN)
    return tensor


class TritonPythonModel:
    """The interface to Triton's Python backend: `initialize` once per instance, then `execute` per batch."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the engine and record its graphs. An exception fails the load; its text becomes the reason."""
        config = json.loads(args["model_config"])
        version_dir = Path(args["model_repository"], args["model_version"])
        self._runner = open_runner(version_dir, config, device=int(args["model_instance_device_id"]))
        self._inputs = [tensor["name"] for tensor in config["input"]]
        self._batched = config["max_batch_size"] > 0

    def execute(self, requests: list[Any]) -> list[Any]:
        """Return one response per request, in order. The requests have equal shapes past the batch."""
        try:
            if self._batched:
                return self._run(requests)
            return [self._run([request])[0] for request in requests]
        except Exception as error:
            # Every error of the engine is the response to the requests of this call.
            if len(requests) == 1:
                return [pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))]
            # One bad request must not fail the others: run each by itself to find it.
            return [response for request in requests for response in self.execute([request])]

    def _input(self, request: Any, name: str) -> Any:
        """Return the tensor in ordinary memory, or in Triton's shared memory if the GPU reads it there.

        `as_numpy` gives a copy that Triton's Python backend has made already; DLPack gives the original.
        """
        tensor = pb_utils.get_input_tensor_by_name(request, name)
        array = tensor.as_numpy()
        return np.from_dlpack(tensor) if self._runner.reads_directly(array.nbytes // max(len(array), 1)) else array

    def _run(self, requests: list[Any]) -> list[Any]:
        arrays = [{name: self._input(request, name) for name in self._inputs} for request in requests]
        outputs = self._runner.run(arrays).items()
        if len(requests) == 1:
            return [pb_utils.InferenceResponse([_tensor(name, array) for name, array in outputs])]
        responses, start, first = [], 0, self._inputs[0]
        for request in arrays:
            end = start + len(request[first])
            tensors = [_tensor(name, array[start:end]) for name, array in outputs]
            responses.append(pb_utils.InferenceResponse(tensors))
            start = end
        return responses
