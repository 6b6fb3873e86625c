"""Send requests over the KServe v2 protocol with the standard library, independent of the load generator."""

import http.client
import json
import socket
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from model_repo.spec import Endpoint

DATATYPES = {np.dtype(np.float32): "FP32", np.dtype(np.int64): "INT64", np.dtype(object): "BYTES"}
DTYPES = {name: dtype for dtype, name in DATATYPES.items()}


class InferenceRefused(Exception):
    """The server responded with an error; the message is its text."""


def infer(endpoint: Endpoint, model_name: str, inputs: dict[Any, Any], timeout_s: float = 240.0) -> dict[Any, Any]:
    """Infer with input name -> array; returns output name -> array. Also works over the control socket."""
    body = {
        "inputs": [
            {"name": n, "datatype": DATATYPES[a.dtype], "shape": a.shape, "data": a.ravel().tolist()}
            for n, a in inputs.items()
        ]
    }
    path, headers = f"/v2/models/{model_name}/infer", dict(endpoint.headers("http"))
    status, answer = _asked(endpoint, "POST", path, json.dumps(body), timeout_s, headers)
    if status != 200:
        raise InferenceRefused(answer["error"])
    return {o["name"]: np.array(o["data"], DTYPES[o["datatype"]]).reshape(o["shape"]) for o in answer["outputs"]}  # type: ignore[call-overload]


def get(endpoint: Any, path: str) -> Any:
    """Return the JSON document at a path."""
    status, answer = _asked(endpoint, "GET", path, None, 120.0)
    assert status == 200, answer
    return answer


def _asked(
    endpoint: Any,
    method: str,
    path: str,
    body: str | None,
    timeout_s: float | None,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(endpoint.host, endpoint.http_port, timeout=timeout_s)
    if endpoint.http_port is None:
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(timeout_s)
        connection.sock.connect(str(endpoint.control_folder / "http"))
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()
