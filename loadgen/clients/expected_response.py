"""Check the responses to inferences of a model, and describe their faults."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from loadgen.traffic.model_info import NUMPY_TYPES, ModelInfo, Tensor, bytes_per_value
from loadgen.transport.http1_response import Head, excerpt
from loadgen.transport.http2_sending import PREFIX_BYTES, Call
from loadgen.transport.json_values import Unusable, short, whole_number

MAX_KEPT_OF_A_MESSAGE = 16 << 20
_LOOKS = 32
_MAX_RANK = 64
_SHORT = 4096
"""A response of JSON alone is parsed every time up to 4 kB, which takes microseconds."""

_FRAMING = 1 << 16
"""A longer message is malformed: names, shapes and parameters add at most so many bytes to its tensors."""

_CONTENTS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip


class Output(NamedTuple):
    """One output as a response describes it. `raw_bytes` None: `numbers` elements came one by one."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    raw_bytes: int | None
    numbers: int = 0


class ExpectedAnswer:
    """The responses of one model, learned from its metadata and from the first of them.

    The first 32 kinds of responses, by head or by length, are parsed: names, types, shapes, byte counts. Later
    ones are checked at no cost: status, content type, and lengths; those that are JSON alone are parsed if they
    are short or speak of an error. If no shape is free, all responses carry as many bytes as the first; otherwise
    each has to be consistent in itself. Where the server's configuration says that the model takes batches, each
    output has the `rows` of the request.
    """

    def __init__(self, info: ModelInfo, rows: int = 1) -> None:
        self._batched = bool(info.max_batch_size)
        self._rows = rows
        self._name = info.name if info.max_batch_size is not None else None
        self._outputs = {tensor.name: tensor for tensor in info.outputs}
        self._fixed = bool(info.outputs) and all(_is_fixed(tensor, info.batched) for tensor in info.outputs)
        self._raw_bytes: int | None = None  # of each response, if it is the same for all
        self._looks_left = _LOOKS
        self._content_types: set[str] = set()
        self._lengths: set[int] = set()

    def vouches_for(self, head: Head) -> bool:
        """True if the head suffices: enough responses were parsed, and this head is like theirs."""
        if self._looks_left or head.status != 200 or head.json_bytes is None or head.length is None:
            return False
        return head.content_type in self._content_types and self._is_size(head.length - head.json_bytes)

    def fault_of_http(self, head: Head, document: bytes, size: int) -> str | None:
        """Return the fault of a response of status 200 and `size` bytes that begins with `document`; None if none.

        A correct response may make the head proven, see `Head`.
        """
        fault = self._fault_of_body(head, document, size)
        if fault is not None:
            kind = head.content_type or "no content type"
            text = f": {excerpt(document)}" if head.json_bytes is None and document else ""
            return f"{fault} (http 200, {kind}, {size:,} bytes{text})"
        self._content_types.add(head.content_type)
        self._looks_left = max(0, self._looks_left - 1)
        head.proven = head.json_bytes is not None and head.length is not None
        return None

    def _fault_of_body(self, head: Head, document: bytes, size: int) -> str | None:
        json_bytes = size if head.json_bytes is None else head.json_bytes
        if json_bytes > size:
            return f"a JSON part of {json_bytes:,} bytes in a body of {size:,}"
        whole = head.json_bytes is not None or size <= len(document)
        looks = self._looks_left > 0 or head.json_bytes is not None
        if not whole or not (looks or size <= _SHORT or b'"error"' in document):
            return None if b'"outputs"' in document else "no inference"
        try:
            answer: Any = json.loads(document)
            if isinstance(answer, dict) and answer.get("error"):
                return f"an error: {short(answer['error'])}"
            outputs = _json_outputs(answer)
        except (ValueError, RecursionError):
            return "no inference"
        return self._fault_of_name(answer.get("model_name")) or self._fault_of_outputs(outputs, size - json_bytes)

    def keeps(self, length: int) -> int:
        """Return how many bytes of a message of this length to keep: all if it is to be parsed, else none."""
        wanted = self._looks_left > 0 and length not in self._lengths and length <= MAX_KEPT_OF_A_MESSAGE
        return length if wanted else 0

    def fault_of_grpc(self, call: Call) -> str | None:
        """Return the fault of the message of a call that ended with status OK; None if none."""
        fault = call.fault_of_frame()
        if fault is not None:
            return fault
        length = call.data_bytes - PREFIX_BYTES
        if length and len(call.answer) == PREFIX_BYTES:
            return (
                None if length in self._lengths or self._is_message(length) else f"a message of {length:,} bytes"
            )
        fault = self._fault_of_message(bytes(call.answer[PREFIX_BYTES:]))
        if fault is None:
            self._lengths.add(length)
            self._looks_left = max(0, self._looks_left - 1)
        return fault

    def _fault_of_message(self, message: bytes) -> str | None:
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
        from tritonclient.grpc.service_pb2 import ModelInferResponse

        answer = ModelInferResponse()
        try:
            answer.ParseFromString(message)
        except DecodeError:
            return f"a message that is no ModelInferResponse: {message[:40]!r}"
        fault = self._fault_of_name(answer.model_name)
        return fault or self._fault_of_outputs(_message_outputs(answer), sum(map(len, answer.raw_output_contents)))

    def _fault_of_name(self, name: object) -> str | None:
        if not name or self._name is None or name == self._name:
            return None
        return f"an answer of the model {short(name)}"

    def _fault_of_outputs(self, outputs: Sequence[Output], raw_bytes: int) -> str | None:
        missing = [name for name in self._outputs if name not in {output.name for output in outputs}]
        if missing or not outputs:
            return f"output {missing[0]} is missing" if missing else "no outputs"
        faults = (self._fault_of(output) for output in outputs)
        return next((fault for fault in faults if fault is not None), None) or self._fault_of_size(
            outputs, raw_bytes
        )

    def _fault_of_size(self, outputs: Sequence[Output], raw_bytes: int) -> str | None:
        described = sum(output.raw_bytes or 0 for output in outputs)
        if described != raw_bytes:
            return f"outputs of {described:,} bytes in all, and {raw_bytes:,} bytes of tensors"
        if self._fixed and self._raw_bytes is None:
            self._raw_bytes = raw_bytes
        if self._is_size(raw_bytes):
            return None
        return f"{raw_bytes:,} bytes of tensors, not {self._raw_bytes:,}"

    def _fault_of(self, output: Output) -> str | None:
        expected = self._outputs.get(output.name)
        if expected is not None and expected.datatype != output.datatype:
            return f"output {output.name} is of type {output.datatype}, not {expected.datatype}"
        if expected is not None and not _shape_fits(expected.shape, output.shape):
            return f"output {output.name} has the shape {list(output.shape)}, not {list(expected.shape)}"
        if expected is not None and self._batched and output.shape[:1] != (self._rows,):
            return f"output {output.name} has the shape {list(output.shape)} for a request of {self._rows} rows"
        count = math.prod(output.shape)
        if output.raw_bytes is None:
            wanted, found, unit = count, output.numbers, "values"
        else:
            wanted, found, unit = count * bytes_per_value(output.datatype), output.raw_bytes, "bytes"
            if output.datatype not in NUMPY_TYPES or (output.datatype == "BYTES" and found >= wanted):
                return None
        if found == wanted:
            return None
        least = " or more" if output.datatype == "BYTES" and unit == "bytes" else ""
        return f"output {output.name} of shape {list(output.shape)} takes {wanted:,} {unit}{least}, not {found:,}"

    def _is_size(self, raw_bytes: int) -> bool:
        return raw_bytes >= 0 if self._raw_bytes is None else raw_bytes == self._raw_bytes

    def _is_message(self, length: int) -> bool:
        if self._raw_bytes is None:
            return length > 0
        return self._raw_bytes <= length <= self._raw_bytes + _FRAMING


def _is_fixed(tensor: Tensor, batched: bool) -> bool:
    own = tensor.shape[1:] if batched and tensor.shape[:1] == (-1,) else tensor.shape
    return tensor.datatype != "BYTES" and -1 not in own


def _shape_fits(expected: tuple[int, ...], found: tuple[int, ...]) -> bool:
    return len(expected) == len(found) and all(
        want in (-1, size) for want, size in zip(expected, found, strict=True)
    )


def _json_outputs(answer: Any) -> list[Output]:
    """Return the outputs in a response that was JSON. Raises ValueError or RecursionError."""
    entries = answer.get("outputs") if isinstance(answer, dict) else None
    if not isinstance(entries, list):
        raise Unusable("no outputs")
    return [_json_output(entry) for entry in entries]


def _json_output(entry: Any) -> Output:
    if not isinstance(entry, dict):
        raise Unusable("an output is no object")
    name, datatype, parameters = entry.get("name"), entry.get("datatype"), entry.get("parameters", {})
    if not isinstance(name, str) or not isinstance(datatype, str) or not isinstance(parameters, dict):
        raise Unusable("an output has no name or no type")
    shape = _shape(entry.get("shape"))
    if "binary_data_size" in parameters:
        return Output(name, datatype, shape, whole_number(parameters["binary_data_size"], least=0))
    return Output(name, datatype, shape, None, _values_in(entry.get("data")))


def _shape(sizes: Any) -> tuple[int, ...]:
    if not isinstance(sizes, list) or len(sizes) > _MAX_RANK:
        raise Unusable("an output has no shape")
    return tuple(whole_number(size, least=0) for size in sizes)


def _values_in(data: Any) -> int:
    """Count the values in a list or in nested lists."""
    if not isinstance(data, list):
        raise Unusable("an output has no data")
    count, lists = 0, [data]
    while lists:
        for item in lists.pop():
            if isinstance(item, list):
                lists.append(item)
            else:
                count += 1
    return count


def _message_outputs(answer: Any) -> list[Output]:
    raw = answer.raw_output_contents
    found = []
    for number, output in enumerate(answer.outputs):
        raw_bytes = len(raw[number]) if number < len(raw) else None
        values = (
            0
            if raw_bytes is not None
            else len(getattr(output.contents, _CONTENTS.get(output.datatype, "bytes_contents")))
        )
        found.append(Output(output.name, output.datatype, tuple(output.shape), raw_bytes, values))
    return found
