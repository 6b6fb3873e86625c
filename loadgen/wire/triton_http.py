"""Query a Triton server over HTTP, outside the load: metadata, configuration, statistics."""

from __future__ import annotations

import json
from typing import Any

from loadgen.errors import LoadError, TargetRefused
from loadgen.spec.target import Target, http_head
from loadgen.traffic.model_info import ModelInfo, model_info
from loadgen.wire.http1_response import error_text
from loadgen.wire.single_request import http_answer


def read_model_info(target: Target) -> ModelInfo:
    """Return the model's inputs and outputs. Raises TargetUnreachable, TargetRefused."""
    status, body = _get(target, target.model_path)
    if status != 200:
        raise TargetRefused(
            f"{target.url} does not serve {target.model_name}: {error_text(status, body)}.\n{_advice(status)}"
        )
    config_status, config = _get(target, f"{target.model_path}/config")
    try:
        return model_info(json.loads(body), json.loads(config) if config_status == 200 else None)
    except (ValueError, RecursionError) as error:
        raise TargetRefused(
            f"{target.url} answered, but not as a KServe v2 server does ({error}).\n"
            "Check the address and its path."
        ) from error


def read_statistics(target: Target) -> object:
    """Return the JSON of the model's counters, or None if the server has none.

    Raises LoadError if the server does not respond in time, ValueError or RecursionError if the body is not JSON.
    """
    status, body = _get(target, f"{target.model_path}/stats")
    return json.loads(body) if status == 200 else None


def read_server_name(target: Target) -> str | None:
    """Return the server's own name; None if it sends none or does not respond in time."""
    try:
        status, body = _get(target, f"{target.base_path}/v2")
        about = json.loads(body) if status == 200 else None
    except (LoadError, ValueError, RecursionError):
        return None
    return str(about.get("name")) if isinstance(about, dict) else None


def register_memory(target: Target, region: str, *, key: str, size: int) -> None:
    """Let the server map shared memory of its own machine. Raises TargetUnreachable, TargetRefused."""
    _about_memory(target, f"{region}/register", {"key": key, "offset": 0, "byte_size": size})


def unregister_memory(target: Target, region: str) -> None:
    """Let the server unmap shared memory. Raises TargetUnreachable, TargetRefused."""
    _about_memory(target, f"{region}/unregister", {})


def _about_memory(target: Target, what: str, document: dict[str, Any]) -> None:
    path = f"{target.base_path}/v2/systemsharedmemory/region/{what}"
    status, body = _asked(target, "POST", path, json.dumps(document).encode())
    if status != 200:
        raise TargetRefused(
            f"{target.url} does not take shared memory: {error_text(status, body)}.\nSend the inputs instead."
        )


def _advice(status: int) -> str:
    if 300 <= status < 400:
        return "It redirects; give the address it redirects to."
    if status in (401, 403):
        return "Send the right authorization header."
    return "Check the model's name and version, and that it is loaded."


def _get(target: Target, path: str) -> tuple[int, bytes]:
    return _asked(target, "GET", path)


def _asked(target: Target, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    head = http_head(target, f"{method} {path}", [f"Content-Length: {len(body)}"] if body else [])
    return http_answer(target, head + body)
