"""Options of a server's start: kind, files, time limits, TCP ports, and requests that it refuses."""

from __future__ import annotations

import contextlib
import errno
import secrets
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from model_repo.errors import PortInUse
from model_repo.spec import Endpoint, Protocol, Runtime, ServerKind

TRACE_FILE = "triton.json"
"""Triton's trace in the folder of a timeline, written when the server ends."""

DEFAULT_IMAGE = "nvcr.io/nvidia/tritonserver:24.10-py3"
"""NVIDIA's container of the same release as the embedded server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The options of `serve`.

    `run_dir` gets `server.log`. Files that the server needs while it runs go to a new folder in `scratch_dir`
    (None: `run_dir`), which is removed at the end. Ports that are None are chosen among the free ones. `protocol`
    is the protocol that a server for trials answers on TCP; the other one is on a Unix socket, for control
    requests. `shared_memory` lets the owner's load generator leave inputs in /dev/shm. `runtime` None means our
    runtime for the embedded server (`slots` on a GPU) and Triton's native backends for the others. Only the kind
    `remote` has `remote`, the server's address, and `repository`, the folder that both it and we see as its model
    repository; or `journals`, the folder that remembers how its own models were configured (see `overrides`).
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
    journals: Path | None = None
    remote_wait_s: float = 0.0  # until the remote server answers
    start_timeout_s: float = 120.0
    load_timeout_s: float = 120.0
    exit_grace_s: float = 2.0  # between SIGTERM and SIGKILL
    completes_config: bool = False  # Triton adds what a config.pbtxt lacks
    timeline: Path | None = None  # folder for Triton's trace of every request, and for what the runtimes execute
    extra_arguments: tuple[str, ...] = ()  # of tritonserver, after ours

    def __post_init__(self) -> None:
        where = [one for one in (self.repository, self.journals) if one is not None]
        if (self.remote is not None, len(where)) != ((True, 1) if self.kind == "remote" else (False, 0)):
            raise ValueError("remote goes with the kind `remote` alone, and with either repository or journals")
        given = [port for port in (self.http_port, self.grpc_port, self.metrics_port) if port is not None]
        if len(set(given)) != len(given) or any(not 1 <= port <= 65535 for port in given):
            raise ValueError(f"ports {given} must be different and within 1..65535")

    @property
    def runtime_or_default(self) -> Runtime:
        """The runtime; if None, the default of this kind of server."""
        ours: Runtime = "slots" if self.gpu else "python"
        return self.runtime or (ours if self.kind == "embedded" else "native")

    @property
    def log_file(self) -> Path:
        """File of the server's output. A server that starts again appends to it."""
        return self.run_dir.absolute() / "server.log"


_HOST = "127.0.0.1"


def choose_endpoint(
    options: ServerOptions, previous: Endpoint | None = None, *, control_folder: Path | None = None
) -> Endpoint:
    """Return the ports that the options give, else those of `previous` if they are still free, else free ones.

    With a `control_folder`, the protocol that the options do not ask for has no port. Free ports are not reserved:
    the caller has to choose again if the server finds one taken. Raises PortInUse.
    """
    given = {"http_port": options.http_port, "grpc_port": options.grpc_port, "metrics_port": options.metrics_port}
    if control_folder is not None:
        del given["grpc_port" if options.protocol == "http" else "http_port"]
    for port in given.values():
        if port is not None and not _is_free(port):
            raise PortInUse(
                f"Port {port} is in use by another process.\nChoose another, or leave it out to get a free one."
            )
    key = None if control_folder is None else secrets.token_hex(16)
    if previous is not None and not ports_in_use(previous):
        return replace(previous, control_folder=control_folder, key=key)
    # All are held open until the last is chosen, so that they differ.
    with contextlib.ExitStack() as stack:
        ports = {"http_port": None, "grpc_port": None, **given}
        for name, port in given.items():
            probe = stack.enter_context(socket.socket())
            probe.bind((_HOST, 0))
            ports[name] = port or int(probe.getsockname()[1])
    return Endpoint(
        host=_HOST,
        http_port=ports["http_port"],
        grpc_port=ports["grpc_port"],
        metrics_port=ports["metrics_port"],
        control_folder=control_folder,
        key=key,
    )


def ports_in_use(endpoint: Endpoint) -> bool:
    """True if one of its ports is taken."""
    ports = (endpoint.http_port, endpoint.grpc_port, endpoint.metrics_port)
    return any(port is not None and not _is_free(port) for port in ports)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do: connections that only wait for their time-out do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the folder of POSIX shared memory
"""The names of all that a server leaves here begin with its token; they are removed when it ends."""

HTTP_SOCKET = "http"
GRPC_SOCKET = "grpc:1"
"""Names in the control folder. Triton appends the port to a gRPC address, also to that of a Unix socket."""

UNSENDABLE = "tritune:closed"
"""A header that no request can carry, because a header's name ends at the first colon.

Triton cannot switch control requests off. It can require a header with a value, but both stand on its command
line, which every local user can read. This header is of no use to such a reader."""

MEMORY_KEY_HEADER = "tritune-memory"
"""Header of a request that registers shared memory, if the server accepts any; `loadgen` sends it."""

_NEVER_OVER_TCP = ("trace", "logging")  # both take names of files that the server then writes
_LISTENERS = {"http": "--http-restricted-api", "grpc": "--grpc-restricted-protocol"}


def control_folder(token: str) -> Path:
    """Return the folder of this server's control socket; `make_control_folder` makes it."""
    return SHARED_MEMORY / f"{token}-control"


def make_control_folder(folder: Path) -> None:
    """Make the folder for this user alone. Its path has to be short: a Unix socket's has at most 107 bytes."""
    folder.mkdir(mode=0o700)


def access_arguments(options: ServerOptions, endpoint: Endpoint, token: str) -> Iterator[str]:
    """Yield the arguments that close the TCP ports to all but health, metadata, inference and statistics.

    A server without a control folder loads its repository at the start, and refuses to load or unload anything.
    With a key it infers for its owner alone: one request can end Triton 2.51 (JSON of many brackets).
    """
    closed = [*_NEVER_OVER_TCP]
    if endpoint.control_folder is None:
        yield "--model-control-mode=none"
        yield "--exit-on-error=false"  # so that it can be asked why a model did not load
    else:
        yield "--model-control-mode=explicit"
        closed.append("model-repository")
    # A container has a /dev/shm of its own, in which no client can leave inputs.
    key = _new_memory_key(token) if options.shared_memory and options.kind != "docker" else None
    if key is None:
        closed.append("shared-memory")
    for protocol, port in (("http", endpoint.http_port), ("grpc", endpoint.grpc_port)):
        if port is not None:
            for name, value in endpoint.headers("http"):
                yield f"{_LISTENERS[protocol]}=inference:{name}={value}"
            yield f"{_LISTENERS[protocol]}={','.join(closed)}:{UNSENDABLE}=never"
            if key is not None:
                yield f"{_LISTENERS[protocol]}=shared-memory:{MEMORY_KEY_HEADER}={key}"


def _new_memory_key(token: str) -> str:
    """Write a new key to a file that the owner's load generator finds by the server's name; return the key.

    It keeps out web pages, and users who cannot read this server's command line. It opens nothing but shared
    memory.
    """
    key = secrets.token_hex(16)
    path = SHARED_MEMORY / f"{token}-memory-key"
    path.touch(mode=0o600, exist_ok=False)
    path.write_text(key)
    return key
