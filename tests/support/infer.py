"""One inference over the KServe v2 protocol, with the standard library: independent of what sends the load."""

import json
import urllib.error
import urllib.request

import numpy as np

DATATYPES = {np.dtype(np.float32): "FP32", np.dtype(np.int64): "INT64", np.dtype(object): "BYTES"}
DTYPES = {name: dtype for dtype, name in DATATYPES.items()}


class InferenceRefused(Exception):
    """The server answered with an error; the text is what it said."""


def infer(endpoint, model_name, inputs, timeout_s=30.0):
    """Input name -> array in, output name -> array out."""
    body = {
        "inputs": [
            {"name": n, "datatype": DATATYPES[a.dtype], "shape": a.shape, "data": a.ravel().tolist()}
            for n, a in inputs.items()
        ]
    }
    url = f"{endpoint.http_url}/v2/models/{model_name}/infer"
    request = urllib.request.Request(url, data=json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            answer = json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            raise InferenceRefused(json.load(error)["error"]) from None
    return {o["name"]: np.array(o["data"], DTYPES[o["datatype"]]).reshape(o["shape"]) for o in answer["outputs"]}
