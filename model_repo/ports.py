"""The TCP ports a server gets, on the loopback interface."""

from __future__ import annotations

import contextlib
import errno
import socket
from typing import TYPE_CHECKING

from model_repo.errors import PortInUse
from model_repo.spec import Endpoint

if TYPE_CHECKING:
    from model_repo.options import ServerOptions

_HOST = "127.0.0.1"


def choose_endpoint(options: ServerOptions, previous: Endpoint | None = None) -> Endpoint:
    """The ports that the options give, `previous` where it is still free, else free ones.

    Nothing holds a free port until the server has it: be ready to choose again. Raises PortInUse.
    """
    given = (options.http_port, options.grpc_port, options.metrics_port)
    for port in given:
        if port is not None and not _is_free(port):
            raise PortInUse(
                f"Port {port} is in use by another process.\nChoose another, or leave it out to get a free one."
            )
    if previous is not None and not ports_in_use(previous):
        return previous
    # Held open together, so that the three differ.
    with contextlib.ExitStack() as stack:
        free = []
        for _ in given:
            probe = stack.enter_context(socket.socket())
            probe.bind((_HOST, 0))
            free.append(int(probe.getsockname()[1]))
    http_port, grpc_port, metrics_port = (port or other for port, other in zip(given, free, strict=True))
    return Endpoint(host=_HOST, http_port=http_port, grpc_port=grpc_port, metrics_port=metrics_port)


def ports_in_use(endpoint: Endpoint) -> bool:
    """Whether one of its ports is taken."""
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
