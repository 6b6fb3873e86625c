"""The requests that a server of ours refuses, and the key by which it knows its owner."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

from model_repo.server.options import ServerOptions
from model_repo.spec import Endpoint

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
