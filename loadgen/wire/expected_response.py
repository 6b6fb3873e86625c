"""Check the responses to inferences of a model, and describe their faults."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from loadgen.json_values import short, whole_number
from loadgen.traffic.model_info import MAX_RANK, NUMPY_TYPES, ModelInfo, bytes_per_value, protocol_type
from loadgen.wire.http1_response import Answer, body_text
from loadgen.wire.http2_sending import PREFIX_BYTES, Call

MAX_KEPT = 1 << 16
"""Bytes of a gRPC message that are kept with its prefix: names, shapes and parameters come before the tensors."""

_MAX_REMEMBERED = 1024
_LONGEST_REMEMBERED = 4096  # bytes
_RAW_TENSOR = 0x32  # tag of the field raw_output_contents, the last one of a message
# To count the numbers of long answers costs less than to parse them; commas in a row are not seen.
_NUMBERS = re.compile(rb'"data":\s*\[[\s\[]*[-0-9][-+0-9.eE,\s\[\]]*\]')
_TEXT_LENGTH = struct.Struct("<I").unpack_from
_JSON_TYPES: Mapping[str, set[type]] = {"BYTES": {str}, "BOOL": {bool, int}}


class Output(NamedTuple):
    """One output as a response describes it. `strange`: what among its values is not of its type.

    `values` None: they come after the description, in `size` bytes if it says how many.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: int | None
    size: int | None = None
    strange: str = ""


class ExpectedAnswer:
    """The responses of one model and version to requests of `rows` rows, as its metadata describes them.

    A response is described by the bytes before its tensors: JSON over HTTP, the beginning of a message over gRPC.
    Names, types and shapes in them are checked, and that tensors are as long as these say. What was right before,
    with as many bytes of tensors, is right without parsing, but for the lengths of texts. The first dimension is
    `rows` if that of the requests is the batch. Outputs have elements; only of a model that takes no batches, as
    its configuration says, the first dimension may be 0: it may find nothing in a picture.
    """

    def __init__(self, info: ModelInfo, rows: int = 1, version: str = "") -> None:
        self._name = info.name if info.max_batch_size is not None else None
        self._version = version
        self._may_be_zero = int(info.max_batch_size == 0)  # so many dimensions
        self._outputs = {tensor.name: tensor for tensor in info.outputs}
        for name, tensor in self._outputs.items():
            if info.max_batch_size or (info.batched and tensor.shape[:1] == (-1,)):
                self._outputs[name] = replace(tensor, shape=(rows, *tensor.shape[1:]))
        # What was right, with its outputs if their texts are to be read.
        self._right: dict[tuple[bytes, int], list[Output]] = {}  # of HTTP: descriptions, and bytes after them
        self._right_beginnings: dict[int, tuple[bytes, list[Output]]] = {}  # of gRPC, by bytes of data

    def fault_of_http(self, answer: Answer) -> str | None:
        """Return the fault of a response of status 200; None if none. Raises MalformedAnswer."""
        body, size, json_bytes = answer.body, answer.size, answer.json_bytes
        description, raw_bytes = body[:json_bytes], size - json_bytes
        key = description, raw_bytes
        if not raw_bytes and _LONGEST_REMEMBERED < size == len(body):
            key = _NUMBERS.sub(_counted, body), raw_bytes
        outputs = self._right.get(key)
        fault = None
        if outputs is None:
            outputs, fault = self._read_json(description, answer)
            fault = fault or _fault_of_tensors(outputs, body[json_bytes:][:MAX_KEPT], raw_bytes)
            if fault is None and len(description) == json_bytes and len(key[0]) <= _LONGEST_REMEMBERED:
                if len(self._right) == _MAX_REMEMBERED:
                    self._right.clear()
                self._right[key] = _with_texts(outputs)
        elif outputs:
            fault = _fault_of_tensors(outputs, body[json_bytes:][:MAX_KEPT], raw_bytes)
        if fault is None:
            return None
        text = f": {body_text(body)}" if not raw_bytes and body else ""
        return f"{fault} (http 200, {answer.content_type or 'no content type'}, {size:,} bytes{text})"

    def _read_json(self, description: bytes, answer: Answer) -> tuple[list[Output], str | None]:
        if answer.json_bytes > answer.size:
            return [], f"a JSON part of {answer.json_bytes:,} bytes in a body of {answer.size:,}"
        cut = len(description) < answer.json_bytes
        if cut:  # too long to be kept whole: the first output is described before its data
            description = description.partition(b'"data"')[0] + b'"data":[]}]}'
        try:
            said = json.loads(description)
            if said.get("error"):
                return [], f"an error: {said['error']!a}"
            outputs = [_json_output(entry) for entry in said["outputs"]]
        except (AttributeError, LookupError, TypeError, ValueError, RecursionError):
            return [], "no inference"
        if cut:
            outputs = [one._replace(values=min(math.prod(one.shape), answer.size // 2)) for one in outputs]
        return outputs, self._fault_of(said.get("model_name"), said.get("model_version"), outputs, cut=cut)

    def fault_of_grpc(self, call: Call) -> str | None:
        """Return the fault of the message of a call that ended with status OK; None if none."""
        known = self._right_beginnings.get(call.data_bytes)
        if known is not None and call.answer.startswith(known[0]):
            return _fault_of_raw(known[1], call, len(known[0])) if known[1] else None
        fault = call.fault_of_frame()
        if fault is not None:
            return fault
        description = _described(bytes(call.answer[PREFIX_BYTES:]))
        begins = PREFIX_BYTES + len(description)
        if call.data_bytes > begins == len(call.answer):  # it goes on, as with typed values
            begun = not self._outputs or any(name.encode() in description for name in self._outputs)
            return None if begun else self._fault_of(None, None, [])
        outputs, fault = self._read_message(description, in_fields=call.data_bytes == begins)
        fault = fault or _fault_of_raw(outputs, call, begins)
        if fault is None and len(description) <= _LONGEST_REMEMBERED:
            if len(self._right_beginnings) == _MAX_REMEMBERED:
                self._right_beginnings.clear()
            self._right_beginnings[call.data_bytes] = bytes(call.answer[:begins]), _with_texts(outputs)
        return fault

    def _read_message(self, description: bytes, *, in_fields: bool) -> tuple[list[Output], str | None]:
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
        from tritonclient.grpc.service_pb2 import ModelInferResponse

        answer = ModelInferResponse()
        try:
            answer.ParseFromString(description)
        except DecodeError:
            return [], f"a message that is not a ModelInferResponse: {description!r}"
        outputs = []
        for entry in answer.outputs:
            found = {field.name: len(values) for field, values in entry.contents.ListFields()}
            datatype = protocol_type(entry.datatype)
            kind = re.sub(r"(?<=INT)(8|16|32)$", "", datatype).lower() + "_contents"
            strange = ", ".join(sorted(found.keys() - {kind}))
            values = sum(found.values()) if in_fields else None
            outputs.append(Output(entry.name, datatype, tuple(entry.shape), values, strange=strange))
        return outputs, self._fault_of(answer.model_name, answer.model_version, outputs)

    def _fault_of(self, name: object, version: object, outputs: list[Output], *, cut: bool = False) -> str | None:
        """Return the fault of a description. `cut`: more outputs may follow."""
        if name and self._name is not None and name != self._name:
            return f"an answer of the model {short(name)}"
        if version and self._version and str(version) != self._version:
            return f"an answer of version {str(version)!a}, not {self._version}"
        missing = self._outputs.keys() - {output.name for output in outputs}
        if missing and not cut:
            return f"output {min(missing)} is missing"
        return next(filter(None, map(self._fault_of_output, outputs)), None if outputs else "no outputs")

    def _fault_of_output(self, output: Output) -> str | None:
        shape, expected = output.shape, self._outputs.get(output.name)
        if expected is not None and expected.datatype != output.datatype:
            return f"output {output.name} is of type {output.datatype}, not {expected.datatype}"
        wanted = shape if expected is None else expected.shape
        fits = len(shape) == len(wanted) <= MAX_RANK
        if not fits or any(size < 0 or want not in (-1, size) for want, size in zip(wanted, shape, strict=True)):
            return f"output {output.name} has the shape {list(shape)}, not {list(wanted)}"
        if 0 in shape[self._may_be_zero :]:
            return f"output {output.name} has the shape {list(shape)}, which has no elements"
        if output.strange:
            return f"output {output.name} of type {output.datatype} holds {output.strange}"
        count = math.prod(shape)
        if output.values not in (None, count):
            return f"output {output.name} of shape {list(shape)} takes {count:,} values, not {output.values:,}"
        return None


def _fault_of_raw(outputs: list[Output], call: Call, begins: int) -> str | None:
    return _fault_of_tensors(outputs, call.answer[begins:], call.data_bytes - begins, framed=True)


def _fault_of_tensors(
    outputs: list[Output], kept: bytes | bytearray, raw_bytes: int, *, framed: bool = False
) -> str | None:
    """Return the fault of the bytes after a description, of which the first were kept.

    `framed`: each tensor has a tag and its length before it.
    """
    at, exact = 0, True
    for output in outputs:
        if output.values is not None:
            continue
        left, size = math.prod(output.shape), output.size
        least = left * bytes_per_value(output.datatype)
        is_text = output.datatype == "BYTES"
        fixed = output.datatype in NUMPY_TYPES and not is_text
        if framed and at < len(kept):
            size, at = _length(kept, at + 1)
        elif framed:
            at += 1 + max(1, math.ceil(least.bit_length() / 7))
        if size is not None and (size < least or (fixed and size > least)):
            or_more = "" if fixed else " or more"
            return (
                f"output {output.name} of shape {list(output.shape)} takes {least:,} bytes{or_more}, not {size:,}"
            )
        exact = exact and (fixed or size is not None)
        end = at + (least if size is None else size)
        if is_text and size is not None:
            last = min(len(kept), end) - 4
            while left and at <= last:
                at += 4 + _TEXT_LENGTH(kept, at)[0]
                left -= 1
            if at > end or (at < end and not left) or (left and at + 4 > end):
                return f"output {output.name} has texts whose lengths are not those of its {size:,} bytes"
        at = end
    if at == raw_bytes or (at < raw_bytes and not exact):
        return None
    return f"outputs of {at:,} bytes in all, and {raw_bytes:,} bytes of tensors"


def _with_texts(outputs: list[Output]) -> list[Output]:
    """Return the outputs if there are texts after their description, else none."""
    return outputs if any(output.values is None and output.datatype == "BYTES" for output in outputs) else []


def _json_output(entry: Any) -> Output:
    """Return an output in a response that was JSON. Raises LookupError, TypeError or ValueError."""
    name, datatype = str(entry["name"]), protocol_type(str(entry["datatype"]))
    shape = tuple(map(whole_number, entry["shape"]))
    parameters = entry.get("parameters") or {}  # KServe's own server sends null
    if "binary_data_size" in parameters:
        return Output(name, datatype, shape, None, whole_number(parameters["binary_data_size"], least=0))
    values = np.array(entry["data"], np.object_).ravel().tolist()
    if not isinstance(entry["data"], list):
        raise TypeError
    others = set(map(type, values)) - _JSON_TYPES.get(datatype, {int} if "INT" in datatype else {int, float})
    strange = next((json.dumps(value) for value in values if type(value) in others), "") if others else ""
    return Output(name, datatype, shape, len(values), strange=strange)


def _counted(numbers: re.Match[bytes]) -> bytes:
    """Return the number of numbers in place of the data of an output, and whether there are fractions."""
    return b'"data":[%d,%d]' % (numbers[0].count(b","), b"." in numbers[0])


def _length(message: bytes | bytearray, at: int) -> tuple[int, int]:
    """Return the length of up to 5 bytes at a place in a message, and the place after it."""
    size = 0
    for place, byte in enumerate(message[at : at + 5]):
        size |= (byte & 0x7F) << 7 * place
        at += 1
        if byte < 0x80:
            break
    return size, at


def _described(message: bytes) -> bytes:
    """Return a message before its first raw tensor; each field there has a tag and its length."""
    at = 0
    while at < len(message) and message[at] != _RAW_TENSOR:
        size, at = _length(message, at + 1)
        at += size
    return message[:at]
