"""A server of others with explicit model control: it keeps configurations, and executes nothing."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from http_stub import answering

from model_repo.spec import Endpoint

GROUP = {"name": "", "kind": "KIND_CPU", "count": 1, "gpus": []}
TENSOR = {"name": "x", "data_type": "TYPE_FP32", "dims": [4]}


def own(name: str, **changes: Any) -> dict[str, Any]:
    """A model's configuration as the server has completed it."""
    given = {"name": name, "max_batch_size": 8, "input": [TENSOR], "output": [{**TENSOR, "name": "y"}]}
    return completed({**given, "backend": "python", **changes})


def completed(config: dict[str, Any]) -> dict[str, Any]:
    groups = config.get("instance_group") or [{"count": 1, "kind": "KIND_CPU"}]
    named = [{**GROUP, "name": f"{config['name']}_{at}", **one} for at, one in enumerate(groups)]
    batcher = config.get("dynamic_batching")
    if batcher is not None and not batcher.get("preferred_batch_size"):  # as Triton does
        config = {**config, "dynamic_batching": {**batcher, "preferred_batch_size": [config["max_batch_size"]]}}
    return {"parameters": {}, "model_warmup": [], **config, "instance_group": named}


@dataclass
class Remote:
    """`refuses` says why a load of a model with a configuration fails; None: it does not.

    `takes` returns what is loaded in place of what was sent.
    """

    endpoint: Endpoint
    models: dict[str, dict[str, Any]]
    refuses: Callable[[str, dict[str, Any]], str | None] = lambda *_: None
    takes: Callable[[dict[str, Any]], dict[str, Any]] = dict

    def counts(self) -> dict[str, int]:
        groups = {name: config["instance_group"] for name, config in self.models.items()}
        return {name: sum(group["count"] for group in each) for name, each in groups.items()}

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        parts = [unquote(part) for part in path.split("/")[2:]]
        if path == "/v2/repository/index":
            entries = [{"name": name, "version": "1", "state": "READY"} for name in self.models]
            return 200, json.dumps(entries).encode()
        if parts[:1] == ["models"] and parts[-1] == "config" and parts[1] in self.models:
            return 200, json.dumps(self.models[parts[1]]).encode()
        if method == "POST" and parts[-1] == "load":
            name, config = parts[2], json.loads(json.loads(body)["parameters"]["config"])
            reason = self.refuses(name, config)
            if reason is None:
                self.models[name] = completed(self.takes(config))
            return (200, b"") if reason is None else (400, json.dumps({"error": reason}).encode())
        if path == "/v2/health/live":
            return 200, b""
        return 404, b'{"error": "no such model"}'


@contextmanager
def fake_remote(*names: str) -> Iterator[Remote]:
    """Serve models with configurations of their own during the block."""
    remote: Remote | None = None

    def answer(method: str, path: str, body: bytes) -> tuple[int, bytes]:
        assert remote is not None
        return remote.answer(method, path, body)

    with answering(answer) as port:
        where = Endpoint(host="127.0.0.1", http_port=port, grpc_port=None, metrics_port=None)
        remote = Remote(where, {name: own(name) for name in names})
        yield remote
