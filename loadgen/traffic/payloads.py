"""Build request bodies before the load begins: names and types from the server, values from a file or a seed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.errors import PayloadError
from loadgen.spec.plan import Payload, TensorFormat
from loadgen.spec.target import Target, http_head
from loadgen.traffic.model_info import NUMPY_TYPES, ModelInfo, Tensor
from loadgen.traffic.random_inputs import check_request_size, random_tensor
from loadgen.traffic.samples import inputs_in_file, parameters_in_file, samples_from_file


@dataclass(frozen=True, slots=True)
class Place:
    """The place of one input of one request in shared memory: a region that the server knows, and its bytes."""

    region: str
    offset: int
    size: int

    @property
    def parameters(self) -> dict[str, str | int]:
        """The parameters of an input in the protocol's shared memory extension."""
        return {
            "shared_memory_region": self.region,
            "shared_memory_offset": self.offset,
            "shared_memory_byte_size": self.size,
        }


Tensors = dict[str, NDArray[Any]]

_GRPC_FIELDS = {bool: "bool_param", int: "int64_param", str: "string_param"}

POOL_SIZE = 16
_POOL_BYTES = 64 << 20


def request_tensors(info: ModelInfo, payload: Payload) -> list[Tensors]:
    """Return the tensors of the pool of requests that the load cycles through. Raises PayloadError.

    A file gives one request per `batch_size` samples; else there are up to 16 requests with different values.
    """
    size, most = payload.batch_size, info.max_batch_size
    if size > 1 and not info.batched:
        raise PayloadError(f"{info.name} takes no batches, so none of {size}.\nUse batch size 1.")
    if most and size > most:
        raise PayloadError(f"{info.name} takes batches of at most {most}, not {size}.\nLower the batch size.")
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


def settled(info: ModelInfo, payload: Payload) -> tuple[ModelInfo, tuple[str, ...]]:
    """Return the model as requests take it, and a note on what had to be guessed without its configuration.

    A shape with all dimensions, or a batch size, says whether the first one is the batch. Else it is, if it is
    free and not the only one of an input: such an input is rather a text or a sound than a number in a batch.
    Inputs that the server does not name are those of the data file. Raises PayloadError.
    """
    info = _asked_for(info, payload.outputs)
    if payload.data_file is not None:
        info = replace(info, parameters=parameters_in_file(payload.data_file))
    guesses = []
    if not info.inputs and payload.data_file is not None and info.max_batch_size is None:
        info = replace(info, inputs=inputs_in_file(payload.data_file))
        guesses.append("the inputs are " + ", ".join(f"{one.name} ({one.datatype})" for one in info.inputs))
    if not info.inputs:
        raise PayloadError(
            f"the server names no inputs of {info.name}, so no request can be made.\n"
            "Give samples with names and types of the inputs: --input-data FILE.npz; or mend its metadata."
        )
    if info.max_batch_size is not None:
        return info, ()
    if info.batched:
        whole = any(len(payload.shapes.get(one.name, ())) == len(one.shape) for one in info.inputs)
        example = info.inputs[0].name
        if not whole and payload.batch_size == 1:
            whole = any(len(tensor.shape) == 1 for tensor in info.inputs)
            what = "has no batch dimension (a --batch-size says that it has)"
            if not whole:
                what = f"has the batch as its first dimension (a --shape {example} of all sizes: it has none)"
            guesses.append(f"{example} {what}")
        info = replace(info, whole_shapes=whole)
    if len(info.inputs) > 1:
        guesses.append("no input is optional")
    if not guesses:
        return info, ()
    why = f"the server gives no configuration of {info.name} ({info.unconfigured or 'none'})"
    return info, (f"{why}, so it was guessed that {', and that '.join(guesses)}",)


def _asked_for(info: ModelInfo, names: tuple[str, ...]) -> ModelInfo:
    """Return the model with the outputs that requests ask for; without names with all."""
    found = tuple(tensor for tensor in info.outputs if tensor.name in names)
    if len(found) < len(set(names)):
        known = ", ".join(tensor.name for tensor in info.outputs) or "the server names none"
        raise PayloadError(f"{info.name} has no outputs {', '.join(names)}.\nIts outputs: {known}.")
    return replace(info, outputs=found, all_outputs=False) if names else info


def request_shape(info: ModelInfo, tensor: Tensor, payload: Payload) -> tuple[int, ...]:
    """Return the whole shape of an input: the batch, then the sizes given or fixed. Raises PayloadError."""
    own = tensor.shape[1:] if info.batched else tensor.shape
    given = payload.shapes.get(tensor.name)
    if given is None:
        if -1 in own:
            free = ",".join("N" if size == -1 else str(size) for size in own)
            raise PayloadError(
                f"input {tensor.name} of {info.name} has a free dimension: {own}.\n"
                f"Give its size, as in --shape {tensor.name}:{free}."
            )
        given = own
    if len(given) != len(own) or any(size not in (-1, want) for size, want in zip(own, given, strict=True)):
        raise PayloadError(
            f"input {tensor.name} of {info.name} takes {own}, not {given}.\n"
            "A -1 is free; the batch is not part of it."
        )
    return (payload.batch_size, *given) if info.batched else given


def raw_bytes(values: NDArray[Any], datatype: str) -> bytes:
    """Return the values in the protocol's format: little endian, row after row; each text after its length."""
    if datatype == "BYTES":
        items = [item if isinstance(item, bytes) else str(item).encode() for item in values.ravel()]
        return b"".join(len(item).to_bytes(4, "little") + item for item in items)
    if datatype == "BF16":
        return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()
    wanted = np.dtype(NUMPY_TYPES[datatype]).newbyteorder("<")
    return np.ascontiguousarray(values, wanted).tobytes()


def raw_inputs(info: ModelInfo, tensors: Tensors) -> dict[str, bytes]:
    """Return the bytes of each input, by name, in the model's order."""
    return {one.name: raw_bytes(tensors[one.name], one.datatype) for one in info.carried_by(tensors)}


def grpc_request(
    target: Target, info: ModelInfo, tensors: Tensors, places: Mapping[str, Place] | None = None
) -> bytes:
    """Return a serialized ModelInferRequest: tensors as raw bytes; it asks for outputs as raw bytes too.

    With `places` it refers to inputs in shared memory and carries none. Raises PayloadError if the request is too
    large for a message.
    """
    from google.protobuf.message import EncodeError  # type: ignore[import-untyped]
    from tritonclient.grpc.service_pb2 import ModelInferRequest  # imports all of gRPC, which HTTP does not need

    request = ModelInferRequest(model_name=target.model_name, model_version=target.model_version)
    for tensor in info.carried_by(tensors):
        values = tensors[tensor.name]
        added = request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=values.shape)
        if places is None:
            request.raw_input_contents.append(raw_bytes(values, tensor.datatype))
            continue
        for name, value in places[tensor.name].parameters.items():
            setattr(added.parameters[name], _GRPC_FIELDS[type(value)], value)
    for name, given in info.parameters:
        setattr(request.parameters[name], _GRPC_FIELDS[type(given)], given)
    for output in () if info.all_outputs else info.outputs:
        request.outputs.add(name=output.name)
    try:
        data: bytes = request.SerializeToString()
    except (EncodeError, ValueError) as error:
        raise PayloadError(
            f"a request of {info.name} is too large for gRPC, whose messages hold 2 GiB at most.\n"
            "Give smaller shapes, or use HTTP."
        ) from error
    return data


def http_request(
    target: Target,
    info: ModelInfo,
    tensors: Tensors,
    places: Mapping[str, Place] | None = None,
    tensors_as: TensorFormat = "binary",
) -> bytes:
    """Return a whole HTTP request: head, JSON, and the tensors as raw bytes; it asks for outputs as raw bytes too.

    With `places` it refers to inputs in shared memory and carries none. As "json", request and answer are JSON
    alone; raises PayloadError for values that JSON has not.
    """
    as_json = tensors_as == "json"
    raw = raw_inputs(info, tensors) if places is None and not as_json else {}
    inputs = []
    for tensor in info.carried_by(tensors):
        values = tensors[tensor.name]
        entry: dict[str, Any] = {"name": tensor.name, "shape": list(values.shape), "datatype": tensor.datatype}
        if places is not None:
            entry["parameters"] = places[tensor.name].parameters
        elif as_json:
            entry["data"] = values.ravel().tolist()
        else:
            entry["parameters"] = {"binary_data_size": len(raw[tensor.name])}
        inputs.append(entry)
    document: dict[str, Any] = {"inputs": inputs}
    if info.parameters:
        document["parameters"] = dict(info.parameters)
    if not info.all_outputs:
        asked = {} if as_json else {"parameters": {"binary_data": True}}
        document["outputs"] = [{"name": output.name, **asked} for output in info.outputs]
    elif not as_json:
        document["parameters"] = {**dict(info.parameters), "binary_data_output": True}
    try:
        text = json.dumps(document, separators=(",", ":"), allow_nan=False, default=bytes.decode).encode()
    except ValueError as error:
        raise PayloadError(f"JSON cannot hold inputs of {info.name}: {error}.\nUse another format.") from error
    fields = ["Content-Type: application/json"]
    if not as_json:
        fields = ["Content-Type: application/octet-stream", f"Inference-Header-Content-Length: {len(text)}"]
    length = len(text) + sum(map(len, raw.values()))
    head = http_head(target, f"POST {target.model_path}/infer", [*fields, f"Content-Length: {length}"])
    return b"".join([head, text, *raw.values()])
