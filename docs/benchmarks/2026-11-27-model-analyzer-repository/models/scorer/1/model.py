"""A model of the Python backend whose executions are sleeps: other work on the machine hardly changes them."""

import time

import triton_python_backend_utils as utils


class TritonPythonModel:
    """Returns the sum of the features of each row, 10 ms after the batch came and 1 ms later per row."""

    def execute(self, requests: list) -> list:
        """Return a response per request."""
        rows = [utils.get_input_tensor_by_name(request, "features").as_numpy() for request in requests]
        time.sleep(0.010 + 0.001 * sum(map(len, rows)))
        sums = [one.sum(axis=1, keepdims=True) for one in rows]
        return [utils.InferenceResponse([utils.Tensor("score", one)]) for one in sums]
