"""How a server is obtained: which kind, where its files lie, which ports, how long to wait for what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path

    from model_repo.config_pbtxt import Runtime
    from model_repo.spec import Endpoint, Protocol

ServerKind = Literal["embedded", "local", "docker", "remote"]

DEFAULT_IMAGE = "nvcr.io/nvidia/tritonserver:24.10-py3"
"""NVIDIA's container of the same release as the embedded server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Everything `serve` needs to know.

    `run_dir` gets `server.log`. What the server needs while it runs goes to a new folder in `scratch_dir` (None:
    `run_dir`), which is removed at the end. Ports that are None are chosen among the free ones. `protocol` is
    what a server for trials answers on TCP; the other one is on a Unix socket, for control requests.
    `shared_memory` lets the owner's load generator leave inputs in /dev/shm. `runtime` None
    means our Python runtime for the embedded server and Triton's native backends for the others. `remote` is where
    a remote server answers, and `repository` the folder that both it and we see as its model repository; both are
    for the kind `remote` alone.
    """

    run_dir: Path
    scratch_dir: Path | None = None
    kind: ServerKind = "embedded"
    protocol: Protocol = "http"
    shared_memory: bool = False
    http_port: int | None = None
    grpc_port: int | None = None
    metrics_port: int | None = None
    gpu: bool = False  # GPU metrics, and GPUs for a container
    runtime: Runtime | None = None
    image: str = DEFAULT_IMAGE
    remote: Endpoint | None = None
    repository: Path | None = None
    start_timeout_s: float = 120.0
    load_timeout_s: float = 120.0
    exit_grace_s: float = 2.0  # between SIGTERM and SIGKILL
    extra_arguments: tuple[str, ...] = ()  # of tritonserver, after ours

    def __post_init__(self) -> None:
        given_remote = {self.remote is not None, self.repository is not None}
        if given_remote != {self.kind == "remote"}:
            raise ValueError(
                "remote and repository go with the kind `remote`, both of them, and with no other kind"
            )
        given = [port for port in (self.http_port, self.grpc_port, self.metrics_port) if port is not None]
        if len(set(given)) != len(given) or any(not 1 <= port <= 65535 for port in given):
            raise ValueError(f"ports {given} must be different and within 1..65535")

    @property
    def runtime_or_default(self) -> Runtime:
        """`runtime`, or what None means for this kind of server."""
        return self.runtime or ("python" if self.kind == "embedded" else "native")

    @property
    def log_file(self) -> Path:
        """Where the server's output goes; appended to when the server is started again."""
        return self.run_dir.absolute() / "server.log"
