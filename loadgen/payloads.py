"""Request bodies, made before the load begins: names and types from the server, values from a file or a seed."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from loadgen.errors import PayloadError
from loadgen.model_info import NUMPY_TYPES, ModelInfo, Tensor
from loadgen.random_inputs import random_tensor
from loadgen.request_size import check_request_size
from loadgen.samples import samples_from_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from loadgen.plan import Payload, Target
    from loadgen.shared_inputs import Place

Tensors = dict[str, NDArray[Any]]

POOL_SIZE = 16
_POOL_BYTES = 64 << 20


def request_tensors(info: ModelInfo, payload: Payload) -> list[Tensors]:
    """The tensors of the pool's requests, which the load cycles through. Raises PayloadError.

    With a file, a request for every `batch_size` samples of it; else up to 16 that differ in their values.
    """
    _check_batch(info, payload.batch_size)
    unknown = set(payload.shapes) - {tensor.name for tensor in info.inputs}
    if unknown:
        raise PayloadError(
            f"{info.name} has no input {', '.join(sorted(unknown))}.\n"
            f"Its inputs: {', '.join(tensor.name for tensor in info.inputs)}."
        )
    if payload.data_file is not None:
        return samples_from_file(payload.data_file, info, payload)
    shapes = {tensor.name: request_shape(info, tensor, payload) for tensor in info.inputs}
    check_request_size(info, shapes, payload.shapes)
    one = sum(math.prod(shape) * 4 for shape in shapes.values())
    count = max(1, min(POOL_SIZE, _POOL_BYTES // max(1, one)))
    rng = np.random.default_rng(payload.seed)
    return [{t.name: random_tensor(rng, t.datatype, shapes[t.name]) for t in info.inputs} for _ in range(count)]


def request_shape(info: ModelInfo, tensor: Tensor, payload: Payload) -> tuple[int, ...]:
    """The whole shape of an input in a request: the batch, then the sizes given or fixed. Raises PayloadError."""
    own = tensor.shape[1:] if info.batched else tensor.shape
    given = payload.shapes.get(tensor.name)
    if given is None:
        if -1 in own:
            free = ",".join("N" if size == -1 else str(size) for size in own)
            raise PayloadError(
                f"input {tensor.name} of {info.name} has a free dimension: {own}.\n"
                f"Say its size, as in --shape {tensor.name}:{free}."
            )
        given = own
    if len(given) != len(own) or any(size not in (-1, want) for size, want in zip(own, given, strict=True)):
        raise PayloadError(
            f"input {tensor.name} of {info.name} takes {own}, not {given}.\n"
            "A -1 is free; the batch is not part of it."
        )
    return (payload.batch_size, *given) if info.batched else given


def raw_bytes(values: NDArray[Any], datatype: str) -> bytes:
    """The values as the protocol carries them: little endian, row after row; each text after its length."""
    if datatype == "BYTES":
        items = [item if isinstance(item, bytes) else str(item).encode() for item in values.ravel()]
        return b"".join(len(item).to_bytes(4, "little") + item for item in items)
    if datatype == "BF16":
        return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()
    wanted = np.dtype(NUMPY_TYPES[datatype]).newbyteorder("<")
    return np.ascontiguousarray(values, wanted).tobytes()


def raw_inputs(info: ModelInfo, tensors: Tensors) -> dict[str, bytes]:
    """The bytes of each input, by name, in the model's order."""
    return {tensor.name: raw_bytes(tensors[tensor.name], tensor.datatype) for tensor in info.inputs}


def grpc_request(
    target: Target, info: ModelInfo, tensors: Tensors, places: Mapping[str, Place] | None = None
) -> bytes:
    """A ModelInferRequest, serialized: tensors as raw bytes, all outputs asked for, as raw bytes too.

    With `places` it says where in shared memory the inputs are, and carries none. Raises PayloadError for more
    than a message can hold.
    """
    from google.protobuf.message import EncodeError  # type: ignore[import-untyped]
    from tritonclient.grpc.service_pb2 import ModelInferRequest  # brings all of gRPC, which HTTP does not need

    request = ModelInferRequest(model_name=target.model_name, model_version=target.model_version)
    for tensor in info.inputs:
        values = tensors[tensor.name]
        added = request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=values.shape)
        if places is None:
            request.raw_input_contents.append(raw_bytes(values, tensor.datatype))
            continue
        for name, value in places[tensor.name].parameters.items():
            if isinstance(value, str):
                added.parameters[name].string_param = value
            else:
                added.parameters[name].int64_param = value
    try:
        data: bytes = request.SerializeToString()
    except (EncodeError, ValueError) as error:
        raise PayloadError(
            f"a request of {info.name} is too large for gRPC, where a message holds 2 GiB at most.\n"
            "Give smaller shapes, or use HTTP."
        ) from error
    return data


def http_request(
    target: Target, info: ModelInfo, tensors: Tensors, places: Mapping[str, Place] | None = None
) -> bytes:
    """A whole HTTP request: head, JSON, and the tensors as raw bytes, which is how outputs are asked for too.

    With `places` it says where in shared memory the inputs are, and carries none.
    """
    raw = raw_inputs(info, tensors) if places is None else {}
    document = {
        "inputs": [
            {
                "name": tensor.name,
                "shape": list(tensors[tensor.name].shape),
                "datatype": tensor.datatype,
                "parameters": (
                    {"binary_data_size": len(raw[tensor.name])}
                    if places is None
                    else places[tensor.name].parameters
                ),
            }
            for tensor in info.inputs
        ],
        "parameters": {"binary_data_output": True},
    }
    text = json.dumps(document, separators=(",", ":")).encode()
    head = http_head(
        target,
        f"POST {target.model_path}/infer",
        [
            "Content-Type: application/octet-stream",
            f"Inference-Header-Content-Length: {len(text)}",
            f"Content-Length: {len(text) + sum(map(len, raw.values()))}",
        ],
    )
    return b"".join([head, text, *raw.values()])


def http_head(target: Target, method_and_path: str, fields: Sequence[str]) -> bytes:
    """The head of an HTTP request, with the user's own headers."""
    host = f"[{target.host}]" if ":" in target.host else target.host
    own = (f"{name}: {value}" for name, value in target.headers)
    lines = [f"{method_and_path} HTTP/1.1", f"Host: {host}:{target.port}", *own, *fields, "", ""]
    return "\r\n".join(lines).encode()


def _check_batch(info: ModelInfo, batch_size: int) -> None:
    if batch_size > 1 and not info.batched:
        raise PayloadError(f"{info.name} takes no batches, so none of {batch_size}.\nUse batch size 1.")
    if info.max_batch_size and batch_size > info.max_batch_size:
        raise PayloadError(
            f"{info.name} takes batches of at most {info.max_batch_size}, not {batch_size}.\nLower the batch size."
        )
