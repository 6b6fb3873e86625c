"""The headers and the message of a gRPC call, and the status of its response."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import unquote

from loadgen.spec.target import Target
from loadgen.status import MALFORMED, outcome_of_grpc, outcome_of_http
from loadgen.wire.http2_frames import Field, RequestHead, request_head

_MAX_STATUS_DIGITS = 5
INFER = "/inference.GRPCInferenceService/ModelInfer"


def grpc_message(data: bytes) -> bytes:
    """Return a message in gRPC's format: not compressed, after its length."""
    return b"\0" + len(data).to_bytes(4, "big") + data


def grpc_head(target: Target, method: str) -> RequestHead:
    """Return the headers of a call of `method`."""
    fields = [
        (b":method", b"POST"),
        (b":scheme", b"https" if target.is_tls else b"http"),
        (b":path", method.encode()),
        (b":authority", target.authority.encode()),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"user-agent", b"tritune"),
    ]
    return request_head(fields, [(name.lower().encode(), value.encode()) for name, value in target.own_headers])


def status_of(fields: Sequence[Field]) -> tuple[int, str]:
    """Return the outcome in the headers and trailers of a response, and its text, for `stranger_text`."""
    found = dict(fields)
    http = found.get(b":status", b"")
    if not http.isdigit() or len(http) != 3:
        return MALFORMED, "an answer without a status"
    if int(http) != 200:
        return outcome_of_http(int(http)), f"http {int(http)}"
    grpc = found.get(b"grpc-status", b"")
    if not grpc.isdigit() or len(grpc) > _MAX_STATUS_DIGITS:
        kind = found.get(b"content-type", b"no content type").decode(errors="replace")
        return MALFORMED, f"http 200 without a grpc-status, {kind}"
    return outcome_of_grpc(int(grpc)), unquote(found.get(b"grpc-message", b"").decode(errors="replace"))
