"""A KServe v2 server that is not Triton: JSON alone, no configuration, no statistics."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from http_stub import answering

INPUTS = ({"name": "x", "datatype": "FP32", "shape": [-1, 4]},)
OUTPUTS = tuple({"name": name, "datatype": "FP32", "shape": [-1, 2]} for name in ("y", "z"))


@dataclass
class JsonServer:
    """Answers `y` and `z`, or those asked for, as KServe's own server does; binary tensors with `refusal`.

    `bare`: the metadata names no inputs and outputs, as MLServer's usually does. `asked` has all requests.
    """

    refusal: int = 500
    bare: bool = False
    asked: list[dict[str, Any]] = field(default_factory=list)

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        if method == "GET":
            named = {"inputs": () if self.bare else INPUTS, "outputs": () if self.bare else OUTPUTS}
            known = {"name": "m", "versions": None, **named}
            return (200, json.dumps(known).encode()) if path == "/v2/models/m" else (404, b'{"detail": "?"}')
        try:
            request = json.loads(body)
        except ValueError:
            return self.refusal, b"Internal Server Error"
        self.asked.append(request)
        rows = request["inputs"][0]["shape"][0]
        names = [one["name"] for one in request.get("outputs", OUTPUTS)]
        described = {"shape": [rows, 2], "datatype": "FP32", "parameters": None, "data": [0.5] * 2 * rows}
        outputs = [{"name": name, **described} for name in names]
        return 200, json.dumps({"model_name": "m", "id": "1", "outputs": outputs}).encode()

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Serve during the block; yields the address."""
        with answering(self.answer) as port:
            yield f"http://127.0.0.1:{port}"
