"""A KServe v2 server that is not Triton: JSON alone, no configuration, no statistics."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

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

    def answer(self, body: bytes) -> tuple[int, Any]:
        try:
            request = json.loads(body)
        except ValueError:
            return self.refusal, None
        self.asked.append(request)
        rows = request["inputs"][0]["shape"][0]
        names = [one["name"] for one in request.get("outputs", OUTPUTS)]
        described = {"shape": [rows, 2], "datatype": "FP32", "parameters": None, "data": [0.5] * 2 * rows}
        return 200, {"model_name": "m", "id": "1", "outputs": [{"name": name, **described} for name in names]}

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Serve during the block; yields the address."""
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                named = {"inputs": () if fake.bare else INPUTS, "outputs": () if fake.bare else OUTPUTS}
                known = self.path == "/v2/models/m"
                self.give(*(200, {"name": "m", "versions": None, **named}) if known else (404, {"detail": "?"}))

            def do_POST(self) -> None:
                self.give(*fake.answer(self.rfile.read(int(self.headers["Content-Length"]))))

            def give(self, status: int, document: Any) -> None:
                body = b"Internal Server Error" if document is None else json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_address[1]}"
            finally:
                server.shutdown()
                thread.join()
