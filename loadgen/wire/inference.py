"""Send one inference outside the load, and return its outputs as arrays."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.errors import LoadError, TargetRefused
from loadgen.spec.target import Target, stranger_text
from loadgen.status import OK, outcome_name
from loadgen.traffic.model_info import ModelInfo, numbers_in, texts_in
from loadgen.traffic.payloads import Tensors, grpc_request, http_request
from loadgen.wire.expected_response import ExpectedAnswer
from loadgen.wire.http1_response import error_text
from loadgen.wire.http2_sending import INFER, PREFIX_BYTES, status_of
from loadgen.wire.questions import grpc_call, http_answer


def infer(target: Target, info: ModelInfo, tensors: Tensors, patience_s: float | None = None) -> Tensors:
    """Return the outputs for one request, on a connection of its own. Raises TargetUnreachable, TargetRefused.

    A response counts under the same conditions as in a load. Texts are bytes, and BF16 becomes float32.
    """
    rows = len(next(iter(tensors.values()))) if info.batched else 1
    expected = ExpectedAnswer(info, rows, target.model_version)
    try:
        if target.is_http:
            return _over_http(target, http_request(target, info, tensors), expected, patience_s)
        return _over_grpc(target, grpc_request(target, info, tensors), expected, patience_s)
    except LoadError:
        raise
    except Exception as error:  # JSON, protobuf and NumPy have their own each
        reason = stranger_text(str(error), target.secrets)
        raise TargetRefused(f"{target.url} gave no inference that can be read: {reason}.\nSee its log.") from error


def _over_http(target: Target, request: bytes, expected: ExpectedAnswer, patience_s: float | None) -> Tensors:
    answer = http_answer(target, request, patience_s)
    fault = expected.fault_of_http(answer) if answer.status == 200 else error_text(answer)
    if fault is not None:
        raise _refused(target, fault)
    outputs, at = {}, answer.json_bytes
    for one in json.loads(answer.body[:at])["outputs"]:
        end = at + int(one["parameters"]["binary_data_size"])
        outputs[one["name"]] = _values(answer.body[at:end], one["datatype"], one["shape"])
        at = end
    return outputs


def _over_grpc(target: Target, message: bytes, expected: ExpectedAnswer, patience_s: float | None) -> Tensors:
    from tritonclient.grpc.service_pb2 import ModelInferResponse

    call = grpc_call(target, INFER, message, patience_s)
    outcome, text = status_of(call.fields)
    fault = expected.fault_of_grpc(call) if outcome == OK else f"{outcome_name(outcome)}, {text}"
    if fault is not None:
        raise _refused(target, fault)
    found = ModelInferResponse.FromString(bytes(call.answer)[PREFIX_BYTES:])
    pairs = zip(found.outputs, found.raw_output_contents, strict=True)
    return {one.name: _values(raw, one.datatype, one.shape) for one, raw in pairs}


def _refused(target: Target, reason: str) -> TargetRefused:
    shown = stranger_text(reason, target.secrets)
    return TargetRefused(f"{target.url} gave no inference: {shown.rstrip('.')}.\nSee its log.")


def _values(raw: bytes, datatype: str, shape: Any) -> NDArray[Any]:
    """Return a tensor from its bytes in the protocol's format. Raises LookupError or ValueError."""
    texts = texts_in(raw) if datatype == "BYTES" else []
    if datatype == "BYTES" and raw and not texts:
        raise ValueError(f"texts whose lengths are not those of the {len(raw):,} bytes")
    values = np.array(texts, np.object_) if datatype == "BYTES" else numbers_in(raw, datatype)
    return values.reshape(tuple(shape))
