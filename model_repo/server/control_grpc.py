"""Triton's control requests over gRPC on a Unix socket."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from model_repo.errors import RequestRefused, ServerDied, ServerTimeout

_OPTIONS = (
    # A model that fails to load sends its traceback in a trailer; the default limit of 8 kB makes that an error.
    ("grpc.max_metadata_size", 2**20),
    ("grpc.absolute_max_metadata_size", 2**20),
    # Else a new server under the same address waits for the backoff of the one before it.
    ("grpc.use_local_subchannel_pool", 1),
)


def load_model(path: Path, model_name: str, *, timeout_s: float) -> None:
    """See `control.load_model`."""
    _request(path, "RepositoryModelLoad", {"model_name": model_name}, timeout_s)


def unload_model(path: Path, model_name: str, *, timeout_s: float) -> None:
    """See `control.unload_model`."""
    _request(path, "RepositoryModelUnload", {"model_name": model_name}, timeout_s)


def model_states(path: Path, *, timeout_s: float) -> list[dict[str, str]]:
    """Return the repository index in the form that the HTTP protocol gives it."""
    answer = _request(path, "RepositoryIndex", {}, timeout_s)
    return [{"name": model.name, "state": model.state, "reason": model.reason} for model in answer.models]


def _request(path: Path, method: str, fields: dict[str, str], timeout_s: float) -> Any:
    request = getattr(service_pb2, f"{method}Request")(**fields)
    with grpc.insecure_channel(f"unix:{path}", options=_OPTIONS) as channel:
        call = getattr(service_pb2_grpc.GRPCInferenceServiceStub(channel), method)
        try:
            return call(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise _translated(error, path, method, timeout_s) from error


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def _translated(error: Any, path: Path, method: str, timeout_s: float) -> Exception:
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return ServerTimeout(
            f"The server did not answer {method} within {timeout_s:g} s.\n"
            "A model that hangs while it loads does this; see the server's log."
        )
    # Triton itself refuses with this code as well.
    if error.code() is grpc.StatusCode.UNAVAILABLE and not _listens(path):
        return ServerDied(
            f"The server's control socket does not answer: {error.details()}.\n"
            "See the server's log for its last words, then start it again."
        )
    return RequestRefused(str(error.details()), status=error.code().value[0])
