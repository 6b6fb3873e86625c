"""One inference over the KServe v2 protocol, with `requests`: independent of what sends the load."""

import numpy as np
import requests

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
    response = requests.post(url, json=body, timeout=timeout_s)
    answer = response.json()
    if not response.ok:
        raise InferenceRefused(answer["error"])
    return {o["name"]: np.array(o["data"], DTYPES[o["datatype"]]).reshape(o["shape"]) for o in answer["outputs"]}
