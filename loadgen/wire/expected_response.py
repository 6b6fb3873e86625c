"""Check the responses to inferences of a model, and describe their faults."""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

import numpy as np

from loadgen.json_values import short, whole_number
from loadgen.traffic.model_info import MAX_RANK, NUMPY_TYPES, ModelInfo, bytes_per_value
from loadgen.wire.http1_response import Answer, body_text
from loadgen.wire.http2_sending import PREFIX_BYTES, Call

MAX_KEPT = 1 << 16
"""Bytes of a gRPC message that are kept with its prefix: names, shapes and parameters come before the tensors."""

_LONG_JSON = 1 << 16  # bytes of a response that is JSON alone; after 32 right ones such are only searched
_LONG_ONES_PARSED = 32
_MAX_REMEMBERED = 1024
_LONGEST_REMEMBERED = 4096  # bytes
_RAW_TENSOR = 0x32  # tag of the field raw_output_contents, the last one of a message


class Output(NamedTuple):
    """One output as a response describes it. `values` None: its bytes come after the description."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: int | None


class ExpectedAnswer:
    """The responses of one model to requests of `rows` rows, as its metadata describes them.

    A response is described by the bytes before its tensors: JSON over HTTP, the beginning of a message over gRPC.
    Names, types and shapes in them are checked, and that all tensors together are as long as these say. What was
    right before, with as many bytes of tensors, is right without parsing. The first dimension is `rows` if the
    server's configuration says that the model takes batches.
    """

    def __init__(self, info: ModelInfo, rows: int = 1) -> None:
        self._rows = (rows,) if info.max_batch_size else ()
        self._name = info.name if info.max_batch_size is not None else None
        self._outputs = {tensor.name: tensor for tensor in info.outputs}
        self._right: set[tuple[bytes, int]] = set()  # of HTTP: descriptions, and bytes after them
        self._right_beginnings: dict[int, bytes] = {}  # of gRPC, by bytes of data: prefix and description
        self._long_ones_left = _LONG_ONES_PARSED

    def fault_of_http(self, answer: Answer) -> str | None:
        """Return the fault of a response of status 200; None if none. Raises MalformedAnswer."""
        body, size, json_bytes = answer.body, answer.size, answer.json_bytes
        description, raw_bytes = body[:json_bytes], size - json_bytes
        if (description, raw_bytes) in self._right:
            return None
        if raw_bytes < 0:
            fault: str | None = f"a JSON part of {json_bytes:,} bytes in a body of {size:,}"
        elif not raw_bytes and (len(body) < size or (size > _LONG_JSON and not self._long_ones_left)):
            fault = None if b'"outputs"' in body and b'"error"' not in body else "no inference"
        else:
            fault = self._fault_of_json(description, raw_bytes)
            self._long_ones_left -= fault is None and size > _LONG_JSON
        if fault is None:
            return None
        text = f": {body_text(body)}" if not raw_bytes and body else ""
        return f"{fault} (http 200, {answer.content_type or 'no content type'}, {size:,} bytes{text})"

    def _fault_of_json(self, description: bytes, raw_bytes: int) -> str | None:
        try:
            answer = json.loads(description)
            if answer.get("error"):
                return f"an error: {answer['error']!a}"
            outputs = [_json_output(entry) for entry in answer["outputs"]]
        except (AttributeError, LookupError, TypeError, ValueError, RecursionError):
            return "no inference"
        fault = self._fault_of_all(answer.get("model_name"), outputs, raw_bytes)
        if fault is None and len(description) <= _LONGEST_REMEMBERED:
            if len(self._right) == _MAX_REMEMBERED:
                self._right.clear()
            self._right.add((description, raw_bytes))
        return fault

    def fault_of_grpc(self, call: Call) -> str | None:
        """Return the fault of the message of a call that ended with status OK; None if none."""
        known = self._right_beginnings.get(call.data_bytes)
        if known is not None and call.answer.startswith(known):
            return None
        fault = call.fault_of_frame()
        if fault is not None:
            return fault
        description = _described(bytes(call.answer[PREFIX_BYTES:]))
        raw_bytes = call.data_bytes - PREFIX_BYTES - len(description)
        if raw_bytes and len(description) == len(call.answer) - PREFIX_BYTES:  # it goes on, as with typed values
            begun = not self._outputs or any(name.encode() in description for name in self._outputs)
            return None if begun else self._fault_of_names(None, [])
        fault = self._fault_of_message(description, raw_bytes)
        if fault is None and len(description) <= _LONGEST_REMEMBERED:
            if len(self._right_beginnings) == _MAX_REMEMBERED:
                self._right_beginnings.clear()
            self._right_beginnings[call.data_bytes] = bytes(call.answer[: PREFIX_BYTES + len(description)])
        return fault

    def _fault_of_message(self, description: bytes, raw_bytes: int) -> str | None:
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
        from tritonclient.grpc.service_pb2 import ModelInferResponse

        answer = ModelInferResponse()
        try:
            answer.ParseFromString(description)
        except DecodeError:
            return f"a message that is not a ModelInferResponse: {description!r}"
        outputs = []
        for entry in answer.outputs:
            values = None if raw_bytes else sum(len(found) for _, found in entry.contents.ListFields())
            outputs.append(Output(entry.name, entry.datatype, tuple(entry.shape), values))
        return self._fault_of_all(answer.model_name, outputs, raw_bytes, framed=True)

    def _fault_of_all(
        self, name: object, outputs: list[Output], raw_bytes: int, *, framed: bool = False
    ) -> str | None:
        """Return the fault of a description. `framed`: each tensor has a tag and its length before it."""
        fault = self._fault_of_names(name, [output.name for output in outputs])
        fault = fault or next(filter(None, map(self._fault_of, outputs)), None)
        return fault or _fault_of_size(outputs, raw_bytes, framed)

    def _fault_of_names(self, name: object, outputs: list[str]) -> str | None:
        if name and self._name is not None and name != self._name:
            return f"an answer of the model {short(name)}"
        missing = [expected for expected in self._outputs if expected not in outputs]
        if missing:
            return f"output {missing[0]} is missing"
        return None if outputs else "no outputs"

    def _fault_of(self, output: Output) -> str | None:
        shape, expected = output.shape, self._outputs.get(output.name)
        if expected is not None and expected.datatype != output.datatype:
            return f"output {output.name} is of type {output.datatype}, not {expected.datatype}"
        wanted = shape if expected is None else self._rows + expected.shape[len(self._rows) :]
        fits = len(shape) == len(wanted) <= MAX_RANK
        if not fits or any(size < 0 or want not in (-1, size) for want, size in zip(wanted, shape, strict=True)):
            return f"output {output.name} has the shape {list(shape)}, not {list(wanted)}"
        count = math.prod(shape)
        if output.values not in (None, count):
            return f"output {output.name} of shape {list(shape)} takes {count:,} values, not {output.values:,}"
        return None


def _fault_of_size(outputs: list[Output], raw_bytes: int, framed: bool) -> str | None:
    binary = [output for output in outputs if output.values is None]
    sizes = [math.prod(output.shape) * bytes_per_value(output.datatype) for output in binary]
    exact = all(output.datatype in NUMPY_TYPES and output.datatype != "BYTES" for output in binary)
    if framed:
        raw_bytes -= sum(1 + max(1, math.ceil(size.bit_length() / 7)) for size in sizes)
    if raw_bytes == sum(sizes) or (raw_bytes > sum(sizes) and not exact):
        return None
    least = "" if exact else " or more"
    return f"outputs of {sum(sizes):,} bytes{least} in all, and {raw_bytes:,} bytes of tensors"


def _json_output(entry: Any) -> Output:
    """Return an output in a response that was JSON. Raises LookupError, TypeError or ValueError."""
    binary = "binary_data_size" in (entry.get("parameters") or {})  # KServe's own server sends null
    values = None if binary else int(np.size(list(entry["data"])))
    return Output(str(entry["name"]), str(entry["datatype"]), tuple(map(whole_number, entry["shape"])), values)


def _described(message: bytes) -> bytes:
    """Return a message before its first raw tensor; each field there has a tag and a length of up to 5 bytes."""
    at, end = 0, len(message)
    while at < end and message[at] != _RAW_TENSOR:
        size = shift = 0
        more = True
        while more and shift < 35 and at + 1 < end:
            at += 1
            size |= (message[at] & 0x7F) << shift
            shift += 7
            more = message[at] >= 0x80
        at += 1 + size
    return message[:at]
