"""Requests over the KServe v2 protocol, with the standard library: independent of what sends the load."""

import http.client
import json
import socket

import numpy as np

DATATYPES = {np.dtype(np.float32): "FP32", np.dtype(np.int64): "INT64", np.dtype(object): "BYTES"}
DTYPES = {name: dtype for dtype, name in DATATYPES.items()}


class InferenceRefused(Exception):
    """The server answered with an error; the text is what it said."""


def infer(endpoint, model_name, inputs, timeout_s=30.0):
    """Input name -> array in, output name -> array out. Also where HTTP is on the control socket."""
    body = {
        "inputs": [
            {"name": n, "datatype": DATATYPES[a.dtype], "shape": a.shape, "data": a.ravel().tolist()}
            for n, a in inputs.items()
        ]
    }
    status, answer = _asked(endpoint, "POST", f"/v2/models/{model_name}/infer", json.dumps(body), timeout_s)
    if status != 200:
        raise InferenceRefused(answer["error"])
    return {o["name"]: np.array(o["data"], DTYPES[o["datatype"]]).reshape(o["shape"]) for o in answer["outputs"]}


def get(endpoint, path):
    """The document there."""
    status, answer = _asked(endpoint, "GET", path, None, 10.0)
    assert status == 200, answer
    return answer


def _asked(endpoint, method, path, body, timeout_s):
    connection = http.client.HTTPConnection(endpoint.host, endpoint.http_port, timeout=timeout_s)
    if endpoint.http_port is None:
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(timeout_s)
        connection.sock.connect(str(endpoint.control_folder / "http"))
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()
