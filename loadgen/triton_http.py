"""Questions to a Triton server over HTTP, outside the load: metadata, configuration, statistics, metrics."""

from __future__ import annotations

import http.client
import json
import ssl
from typing import TYPE_CHECKING, Any

from loadgen.errors import TargetRefused, TargetUnreachable
from loadgen.http_answer import error_text
from loadgen.model_info import ModelInfo, model_info
from loadgen.streams import tls_context

if TYPE_CHECKING:
    from loadgen.plan import Target

_TIMEOUT_S = 10.0


def read_model_info(target: Target) -> ModelInfo:
    """What the model takes and gives. Raises TargetUnreachable, TargetRefused."""
    status, body = _get(target, target.model_path)
    if status != 200:
        raise TargetRefused(
            f"{target.url} does not serve {target.model_name}: {error_text(status, body)}.\n{_advice(status)}"
        )
    config_status, config = _get(target, f"{target.model_path}/config")
    try:
        return model_info(json.loads(body), json.loads(config) if config_status == 200 else None)
    except (ValueError, KeyError, TypeError) as error:
        raise TargetRefused(
            f"{target.url} answered, but not as a KServe v2 server does ({error}).\n"
            "Check the address and its path."
        ) from error


def read_statistics(target: Target) -> dict[str, Any] | None:
    """The model's counters, or None where the server keeps none or does not answer in time."""
    try:
        status, body = _get(target, f"{target.model_path}/stats")
        statistics = json.loads(body) if status == 200 else None
    except (TargetUnreachable, ValueError):
        return None
    return statistics if isinstance(statistics, dict) else None


def register_memory(target: Target, region: str, *, key: str, size: int) -> None:
    """Let the server map shared memory of its own machine. Raises TargetUnreachable, TargetRefused."""
    _about_memory(target, f"{region}/register", {"key": key, "offset": 0, "byte_size": size})


def unregister_memory(target: Target, region: str) -> None:
    """Let the server forget it. Raises TargetUnreachable, TargetRefused."""
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


def _asked(target: Target, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    if target.is_tls:
        context = tls_context(target)
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            target.host, target.port, timeout=_TIMEOUT_S, context=context
        )
    else:
        connection = http.client.HTTPConnection(target.host, target.port, timeout=_TIMEOUT_S)
    try:
        connection.request(method, path, body=body, headers=dict(target.headers))
        answer = connection.getresponse()
        return answer.status, answer.read()
    except ssl.SSLCertVerificationError as error:
        raise TargetUnreachable(
            f"the certificate of {target.url} is not accepted: {error.verify_message}.\n"
            "Give its authority as a CA file, or use the name it was made for."
        ) from error
    except (OSError, http.client.HTTPException) as error:
        reason = str(error) or type(error).__name__
        raise TargetUnreachable(
            f"{target.url} does not answer: {reason}.\nStart the server, or correct the address."
        ) from error
    finally:
        connection.close()
