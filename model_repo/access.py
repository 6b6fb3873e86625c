"""Which requests a server that we start refuses, and how its owner proves to be the owner."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from model_repo.options import ServerOptions
    from model_repo.spec import Endpoint

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where POSIX shared memory is
"""Whatever a server leaves here begins with its token, and is removed when it ends."""

HTTP_SOCKET = "http"
GRPC_SOCKET = "grpc:1"
"""Names in the control folder. Triton appends the port to a gRPC address, also to that of a Unix socket."""

UNSENDABLE = "tritune:closed"
"""A header that no request can carry, because a header's name ends at the first colon.

Triton cannot switch control requests off; it can ask for a header and its value, which stand on its command line,
and that every local user can read. With this header there is nothing to learn."""

MEMORY_KEY_HEADER = "tritune-memory"
"""Of a request that registers shared memory, where the server takes any. `loadgen.memory_key` sends it."""

_NEVER_OVER_TCP = ("trace", "logging")  # both take names of files that the server then writes
_LISTENERS = {"http": "--http-restricted-api", "grpc": "--grpc-restricted-protocol"}


def control_folder(token: str) -> Path:
    """Where a server with this token has its control socket, once `make_control_folder` has made it."""
    return SHARED_MEMORY / f"{token}-control"


def make_control_folder(folder: Path) -> None:
    """For this user alone. Its name is short, as the paths of Unix sockets have to be (107 bytes)."""
    folder.mkdir(mode=0o700)


def access_arguments(options: ServerOptions, endpoint: Endpoint, token: str) -> Iterator[str]:
    """What closes the TCP ports to all but health, metadata, inference and statistics.

    A server without a control folder loads its repository at the start, and refuses to load or unload anything.
    """
    closed = [*_NEVER_OVER_TCP]
    if endpoint.control_folder is None:
        yield "--model-control-mode=none"
        yield "--exit-on-error=false"  # so that it can be asked why a model did not load
    else:
        yield "--model-control-mode=explicit"
        closed.append("model-repository")
    key = _new_memory_key(token) if _takes_shared_memory(options) else None
    if key is None:
        closed.append("shared-memory")
    for protocol, port in (("http", endpoint.http_port), ("grpc", endpoint.grpc_port)):
        if port is not None:
            yield f"{_LISTENERS[protocol]}={','.join(closed)}:{UNSENDABLE}=never"
            if key is not None:
                yield f"{_LISTENERS[protocol]}=shared-memory:{MEMORY_KEY_HEADER}={key}"


def _takes_shared_memory(options: ServerOptions) -> bool:
    """A container has a /dev/shm of its own, where clients cannot leave anything."""
    return options.shared_memory and options.kind != "docker"


def _new_memory_key(token: str) -> str:
    """Written where the owner's load generator finds it, by the name that the server gives itself.

    It keeps web pages out, and users who cannot read this server's command line. It opens nothing but shared
    memory.
    """
    key = secrets.token_hex(16)
    path = SHARED_MEMORY / f"{token}-memory-key"
    path.touch(mode=0o600, exist_ok=False)
    path.write_text(key)
    return key
