"""Triton's control requests over plain HTTP: health, models in and out."""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING
from urllib.parse import quote

from model_repo.errors import RequestRefused, ServerDied, ServerTimeout

if TYPE_CHECKING:
    from model_repo.spec import Endpoint

_TIMEOUT_S = 10.0


def is_live(endpoint: Endpoint, *, timeout_s: float = _TIMEOUT_S) -> bool:
    """Whether a server answers there that it is live."""
    return _is_ok(endpoint, "/v2/health/live", timeout_s)


def is_model_ready(endpoint: Endpoint, model_name: str, *, timeout_s: float = _TIMEOUT_S) -> bool:
    """Whether the model can take requests now."""
    return _is_ok(endpoint, f"/v2/models/{quote(model_name)}/ready", timeout_s)


def load_model(endpoint: Endpoint, model_name: str, *, timeout_s: float) -> None:
    """Load a model of the repository, or update a loaded one; returns when it is ready.

    Raises RequestRefused with what the model said, ServerTimeout (the load may then hang for ever), ServerDied.
    """
    _request(endpoint, "POST", f"/v2/repository/models/{quote(model_name)}/load", timeout_s)


def unload_model(endpoint: Endpoint, model_name: str, *, timeout_s: float = _TIMEOUT_S) -> None:
    """Take a model out of service. Returns at once; the server frees its memory later (see `model_state`)."""
    _request(endpoint, "POST", f"/v2/repository/models/{quote(model_name)}/unload", timeout_s)


def model_state(endpoint: Endpoint, model_name: str, *, timeout_s: float = _TIMEOUT_S) -> str | None:
    """LOADING, READY, UNLOADING or UNAVAILABLE; None for a model that the server has never loaded."""
    for entry in json.loads(_request(endpoint, "POST", "/v2/repository/index", timeout_s)):
        if entry["name"] == model_name:
            state: str | None = entry.get("state")
            return state
    return None


def _is_ok(endpoint: Endpoint, path: str, timeout_s: float) -> bool:
    try:
        _request(endpoint, "GET", path, timeout_s)
    except (RequestRefused, ServerTimeout, ServerDied):
        return False
    return True


def _request(endpoint: Endpoint, method: str, path: str, timeout_s: float) -> bytes:
    where = f"{endpoint.host}:{endpoint.http_port}"
    connection = http.client.HTTPConnection(endpoint.host, endpoint.http_port, timeout=timeout_s)
    try:
        connection.request(method, path, body=b"{}" if method == "POST" else None)
        answer = connection.getresponse()
        body = answer.read()
    except TimeoutError as error:
        raise ServerTimeout(
            f"The server at {where} did not answer {path} within {timeout_s:g} s.\n"
            "A model that hangs while it loads does this; the server's log may say more."
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
