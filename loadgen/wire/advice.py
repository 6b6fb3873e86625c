"""Advise what to do about a failed question or first request, by what the server answered."""

from __future__ import annotations

from loadgen.spec.plan import Payload
from loadgen.status import is_passing, outcome_name
from loadgen.traffic.model_info import ModelInfo

_NAMES = "Check the address and its path, the model's name and version, and that it is loaded."
_ADVICE = {
    "http 301, http 302, http 303, http 307, http 308": "It redirects; give the address it redirects to.",
    "http 401, http 403, grpc UNAUTHENTICATED, grpc PERMISSION_DENIED": "Send the right authorization header.",
    "http 404, http 405, grpc NOT_FOUND, grpc UNIMPLEMENTED": _NAMES,
    "http 413, grpc RESOURCE_EXHAUSTED, grpc OUT_OF_RANGE": (
        "It is over a limit of the server, or of a gateway: raise that, or send smaller shapes or batches."
    ),
    "http 415": "It takes no binary tensors: use --format json.",
    "malformed answer": (
        "Look at one answer, and at the address. Triton's Python backend sends empty outputs with some versions "
        "of numpy."
    ),
}


def advice_on(outcome: int, info: ModelInfo | None = None, payload: Payload | None = None) -> str:
    """Return the advice on a failure. `info` and `payload` belong to an inference; a question has neither."""
    name = outcome_name(outcome)
    if is_passing(outcome):
        return "It was asked three times. See its log; loadtest --wait-ready 2m waits for a model that starts."
    for names, advice in _ADVICE.items():
        if name in names.split(", "):
            return advice
    log = "See the server's log." if name.startswith(("http 5", "grpc INTERNAL", "grpc UNKNOWN")) else ""
    if info is None or payload is None:
        return log or _NAMES
    data = f"Check the values and shapes in {payload.data_file}."
    if payload.data_file is None:
        data = "If the model refuses generated values or sizes, give real ones: --input-data FILE."
    # A server without Triton's configuration is another one: MLServer answers binary tensors with status 500.
    may_refuse = name.startswith("http") and payload.format == "binary" and info.max_batch_size is None
    return " ".join(filter(None, ("If it takes no binary tensors, use --format json." * may_refuse, log, data)))
