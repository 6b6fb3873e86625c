"""Triton's control requests: health, load and unload. Over HTTP, or over gRPC if only gRPC accepts them."""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path
from urllib.parse import quote

from model_repo.errors import RequestRefused, ServerDied, ServerTimeout
from model_repo.server.access import GRPC_SOCKET, HTTP_SOCKET
from model_repo.spec import Endpoint

_TIMEOUT_S = 10.0


def is_live(endpoint: Endpoint, *, timeout_s: float = _TIMEOUT_S) -> bool:
    """True if a server answers there that it is live."""
    return _is_ok(endpoint, "/v2/health/live", timeout_s)


def is_model_ready(endpoint: Endpoint, model_name: str, *, timeout_s: float = _TIMEOUT_S) -> bool:
    """True if the model can take requests now."""
    return _is_ok(endpoint, f"/v2/models/{quote(model_name)}/ready", timeout_s)


def load_model(endpoint: Endpoint, model_name: str, *, timeout_s: float) -> None:
    """Load a model of the repository, or update a loaded one; return when it is ready.

    Raises RequestRefused with the model's own message, ServerTimeout (the load may then hang forever), ServerDied.
    """
    if (grpc_socket := _grpc_socket(endpoint)) is not None:
        from model_repo.server import control_grpc  # brings all of gRPC, a quarter of a second

        return control_grpc.load_model(grpc_socket, model_name, timeout_s=timeout_s)
    _request(endpoint, "POST", f"/v2/repository/models/{quote(model_name)}/load", timeout_s)
    return None


def unload_model(endpoint: Endpoint, model_name: str, *, timeout_s: float = _TIMEOUT_S) -> None:
    """Take a model out of service. Returns at once; the server frees its memory later (see `model_state`)."""
    if (grpc_socket := _grpc_socket(endpoint)) is not None:
        from model_repo.server import control_grpc

        return control_grpc.unload_model(grpc_socket, model_name, timeout_s=timeout_s)
    _request(endpoint, "POST", f"/v2/repository/models/{quote(model_name)}/unload", timeout_s)
    return None


def model_state(endpoint: Endpoint, model_name: str, *, timeout_s: float = _TIMEOUT_S) -> str | None:
    """Return LOADING, READY, UNLOADING or UNAVAILABLE; None if the server has never loaded the model."""
    return _index_entry(endpoint, model_name, timeout_s).get("state") or None


def why_unavailable(endpoint: Endpoint, model_name: str, *, timeout_s: float = _TIMEOUT_S) -> str:
    """Return the server's reason why a model is not ready; "" if it gives none."""
    return _index_entry(endpoint, model_name, timeout_s).get("reason", "")


def server_name(endpoint: Endpoint, *, timeout_s: float) -> str | None:
    """Return the name that the server gives itself; None if nothing answers there, or no Triton."""
    return _described(endpoint, "name", timeout_s)


def server_version(endpoint: Endpoint, *, timeout_s: float = _TIMEOUT_S) -> str | None:
    """Return Triton's version, such as 2.51.0; None if nothing answers there, or no Triton."""
    return _described(endpoint, "version", timeout_s)


def _described(endpoint: Endpoint, key: str, timeout_s: float) -> str | None:
    try:
        return str(json.loads(_request(endpoint, "GET", "/v2", timeout_s))[key])
    except (RequestRefused, ServerTimeout, ServerDied, ValueError, KeyError, TypeError):
        return None


def _index_entry(endpoint: Endpoint, model_name: str, timeout_s: float) -> dict[str, str]:
    if (grpc_socket := _grpc_socket(endpoint)) is not None:
        from model_repo.server import control_grpc

        entries = control_grpc.model_states(grpc_socket, timeout_s=timeout_s)
    else:
        entries = json.loads(_request(endpoint, "POST", "/v2/repository/index", timeout_s))
    return next((entry for entry in entries if entry["name"] == model_name), {})


def _grpc_socket(endpoint: Endpoint) -> Path | None:
    """Return the Unix socket for control requests over gRPC; None if they go over HTTP."""
    if endpoint.control_folder is None or endpoint.http_port is None:
        return None
    return endpoint.control_folder / GRPC_SOCKET


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path, *, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _connection(endpoint: Endpoint, timeout_s: float) -> tuple[str, http.client.HTTPConnection]:
    """Return the server's name for messages, and a connection to it."""
    if endpoint.http_port is not None:
        where = f"{endpoint.host}:{endpoint.http_port}"
        return where, http.client.HTTPConnection(endpoint.host, endpoint.http_port, timeout=timeout_s)
    assert endpoint.control_folder is not None
    path = endpoint.control_folder / HTTP_SOCKET
    return str(path), _UnixConnection(path, timeout_s=timeout_s)


def _is_ok(endpoint: Endpoint, path: str, timeout_s: float) -> bool:
    try:
        _request(endpoint, "GET", path, timeout_s)
    except (RequestRefused, ServerTimeout, ServerDied):
        return False
    return True


def _request(endpoint: Endpoint, method: str, path: str, timeout_s: float) -> bytes:
    where, connection = _connection(endpoint, timeout_s)
    try:
        connection.request(method, path, body=b"{}" if method == "POST" else None)
        answer = connection.getresponse()
        body = answer.read()
    except TimeoutError as error:
        raise ServerTimeout(
            f"The server at {where} did not answer {path} within {timeout_s:g} s.\n"
            "A model that hangs while it loads does this; see the server's log."
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise ServerDied(
            f"No server answers at {where}: {str(error) or type(error).__name__}.\n"
            "See the server's log for its last words, then start it again."
        ) from error
    finally:
        connection.close()
    if answer.status != http.client.OK:
        raise RequestRefused(_refusal(where, path, answer.status, body), status=answer.status)
    return body


def _refusal(where: str, path: str, status: int, body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return f"The server at {where} answered {path} with HTTP status {status}.\nIs it a Triton server?"
