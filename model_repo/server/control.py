"""Triton's control requests: health, load and unload. Over HTTP, or over gRPC if only gRPC accepts them."""

from __future__ import annotations

import http.client
import json
import socket
from base64 import b64encode
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from model_repo.errors import BadServer, CredentialsRefused, RequestRefused, ServerDied, ServerError, ServerTimeout
from model_repo.server.options import GRPC_SOCKET, HTTP_SOCKET
from model_repo.spec import Endpoint

_TIMEOUT_S = 10.0
_MIN_SECRET = 4
_MAX_BYTES, _MOST_CHARACTERS, _MOST_INSTANCES = 16 * 2**20, 300, 10_000
FOR_CREDENTIALS = (http.client.UNAUTHORIZED, http.client.FORBIDDEN)

_GRPC_OPTIONS = (
    # A model that fails to load sends its traceback in a trailer; the default limit of 8 kB makes that an error.
    ("grpc.max_metadata_size", 2**20),
    ("grpc.absolute_max_metadata_size", 2**20),
    # Else a new server under the same address waits for the backoff of the one before it.
    ("grpc.use_local_subchannel_pool", 1),
)


def is_live(endpoint: Endpoint, *, timeout_s: float = _TIMEOUT_S, but: type[ServerError] | tuple[()] = ()) -> bool:
    """True if a server answers there that it is live. Raises errors of the kind `but`."""
    return _is_ok(endpoint, "/v2/health/live", timeout_s, but=but)


def is_model_ready(endpoint: Endpoint, model_name: str) -> bool:
    """True if the model can take requests now."""
    return _is_ok(endpoint, f"/v2/models/{quote(model_name)}/ready")


def load_model(
    endpoint: Endpoint, model_name: str, *, timeout_s: float, config: Mapping[str, Any] | None = None
) -> None:
    """Load a model of the repository, or update a loaded one; return when it is ready.

    `config` takes the place of its `config.pbtxt`, over HTTP. Raises RequestRefused with the model's own message,
    ServerTimeout (the load may then hang forever), ServerDied.
    """
    if (path := _grpc_socket(endpoint)) is not None:
        _grpc_request(endpoint, path, "RepositoryModelLoad", {"model_name": model_name}, timeout_s)
    else:
        document = {} if config is None else {"parameters": {"config": json.dumps(config)}}
        _request(endpoint, "POST", f"/v2/repository/models/{quote(model_name)}/load", timeout_s, document)


def unload_model(endpoint: Endpoint, model_name: str) -> None:
    """Take a model out of service. Returns at once; the server frees its memory later (see `model_state`)."""
    if (path := _grpc_socket(endpoint)) is not None:
        _grpc_request(endpoint, path, "RepositoryModelUnload", {"model_name": model_name})
    else:
        _request(endpoint, "POST", f"/v2/repository/models/{quote(model_name)}/unload")


def model_config(endpoint: Endpoint, model_name: str) -> dict[str, Any]:
    """Return the configuration of a loaded model as the server has completed it, with its `max_batch_size`.

    Raises as `load_model` does, and BadServer.
    """
    path = f"/v2/models/{quote(model_name)}/config"
    document, message = _read(endpoint, "GET", path, "ModelConfigResponse", "config")
    sizes = [size for one in (*message.input, *message.output) for size in one.dims]
    counted = all(0 <= group.count <= _MOST_INSTANCES for group in message.instance_group)
    sized = message.max_batch_size >= 0 and all(size > 0 or size == -1 for size in sizes)
    if message.name != model_name or not (counted and sized):
        raise _unfit(endpoint, path, f"a configuration that no model {model_name} can have")
    return {**document, "max_batch_size": message.max_batch_size}


def model_state(endpoint: Endpoint, model_name: str) -> str | None:
    """Return LOADING, READY, UNLOADING or UNAVAILABLE; None if the server has never loaded the model."""
    return next((one.state for one in _index(endpoint) if one.name == model_name), "") or None


def why_unavailable(endpoint: Endpoint, model_name: str) -> str:
    """Return the server's reason why a model is not ready; "" if it gives none."""
    return next((str(one.reason) for one in _index(endpoint) if one.name == model_name), "")


def served_models(endpoint: Endpoint) -> set[str]:
    """Return the names of the models that take requests now. Raises as `model_config` does."""
    return {one.name for one in _index(endpoint) if one.state == "READY"}


def server_says(
    endpoint: Endpoint, key: Literal["name", "version"], *, timeout_s: float = _TIMEOUT_S
) -> str | None:
    """Return the server's own name, or Triton's version, such as 2.51.0; None if no Triton answers there."""
    try:
        return str(json.loads(_request(endpoint, "GET", "/v2", timeout_s))[key])[:_MOST_CHARACTERS]
    except (ServerError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _index(endpoint: Endpoint) -> Any:
    """Return the entries of the repository's index, as messages."""
    if (path := _grpc_socket(endpoint)) is not None:
        return _grpc_request(endpoint, path, "RepositoryIndex", {}).models
    return _read(endpoint, "POST", "/v2/repository/index", "RepositoryIndexResponse", "models")[1]


def _read(endpoint: Endpoint, method: str, path: str, kind: str, field: str) -> tuple[Any, Any]:
    """Return the JSON of a response, and it as that field of a gRPC message. Raises BadServer if it is none."""
    from google.protobuf import json_format  # type: ignore[import-untyped]
    from tritonclient.grpc import service_pb2

    content = _request(endpoint, method, path)
    try:
        document, message = json.loads(content), getattr(service_pb2, kind)()
        json_format.ParseDict({field: document}, message, ignore_unknown_fields=True)
    except (ValueError, RecursionError, json_format.Error) as error:
        reason = " ".join(_without(endpoint.credentials, str(error)).split())[:_MOST_CHARACTERS]
        raise _unfit(endpoint, path, f"something else than Triton does ({reason})") from error
    return document, getattr(message, field)


def _unfit(endpoint: Endpoint, path: str, what: str) -> BadServer:
    return BadServer(
        f"The server at {_connection(endpoint, 0)[0]} answers {path} with {what}.\n"
        "See what answers there: it has to be Triton itself, not a proxy or its sign-in page."
    )


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


def _is_ok(
    endpoint: Endpoint, path: str, timeout_s: float = _TIMEOUT_S, *, but: type[ServerError] | tuple[()] = ()
) -> bool:
    try:
        _request(endpoint, "GET", path, timeout_s)
    except but:
        raise
    except ServerError:
        return False
    return True


def _request(
    endpoint: Endpoint,
    method: str,
    path: str,
    timeout_s: float = _TIMEOUT_S,
    document: Mapping[str, Any] | None = None,
) -> bytes:
    where, connection = _connection(endpoint, timeout_s)
    try:
        body = json.dumps(document or {}).encode() if method == "POST" else None
        connection.request(method, path, body=body, headers=dict(endpoint.credentials))
        answer = connection.getresponse()
        content = answer.read(_MAX_BYTES + 1)
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
    if len(content) > _MAX_BYTES:
        raise _unfit(endpoint, path, f"more than {_MAX_BYTES >> 20} MiB")
    if answer.status != http.client.OK:
        refusal = _without(endpoint.credentials, _refusal(where, path, answer.status, content))
        refused = CredentialsRefused if answer.status in FOR_CREDENTIALS else RequestRefused
        raise refused(refusal, status=answer.status)
    return content


def _without(credentials: Iterable[tuple[str, str]], text: str) -> str:
    """Return the text without the values of credentials and their words, in Base64 too: a server may echo them."""
    for _, value in credentials:
        words = (value, *(word for word in value.split() if len(word) >= _MIN_SECRET))
        for secret in (*words, *(b64encode(word.encode()).decode().rstrip("=") for word in words)):
            text = text.replace(secret, "[removed]")
    return text


def _refusal(where: str, path: str, status: int, body: bytes) -> str:
    try:
        words = str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError, RecursionError):
        words = ""
    if status in FOR_CREDENTIALS:
        reason = ": ".join(filter(None, (f"HTTP status {status}", " ".join(words.split()).rstrip("."))))
        return (
            f"The server at {where} refused {path} for its credentials ({reason}).\n"
            "Give the header that it wants with --header-env NAME=VARIABLE, and check the variable's value."
        )
    return words or f"The server at {where} answered {path} with HTTP status {status}.\nIs it a Triton server?"


def _grpc_request(
    endpoint: Endpoint, path: Path, method: str, fields: dict[str, str], timeout_s: float = _TIMEOUT_S
) -> Any:
    """Make a request on Triton's Unix socket. All of gRPC takes a quarter of a second to import."""
    import grpc
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    request = getattr(service_pb2, f"{method}Request")(**fields)
    with grpc.insecure_channel(f"unix:{path}", options=_GRPC_OPTIONS) as channel:
        call = getattr(service_pb2_grpc.GRPCInferenceServiceStub(channel), method)
        try:
            return call(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise _translated(error, endpoint, method, timeout_s) from error


def _translated(error: Any, endpoint: Endpoint, method: str, timeout_s: float) -> Exception:
    import grpc

    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return ServerTimeout(
            f"The server did not answer {method} within {timeout_s:g} s.\n"
            "A model that hangs while it loads does this; see the server's log."
        )
    # Triton itself refuses with this code as well; and the sockets of a process that dies listen to its end.
    if error.code() is grpc.StatusCode.UNAVAILABLE and not is_live(endpoint):
        return ServerDied(
            f"The server's control socket does not answer: {error.details()}.\n"
            "See the server's log for its last words, then start it again."
        )
    return RequestRefused(str(error.details()), status=error.code().value[0])
