"""The TCP ports a server gets, on the loopback interface."""

from __future__ import annotations

import contextlib
import errno
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

from model_repo.errors import PortInUse
from model_repo.spec import Endpoint

if TYPE_CHECKING:
    from pathlib import Path

    from model_repo.options import ServerOptions

_HOST = "127.0.0.1"


def choose_endpoint(
    options: ServerOptions, previous: Endpoint | None = None, *, control_folder: Path | None = None
) -> Endpoint:
    """The ports that the options give, those of `previous` where they are still free, else free ones.

    With a `control_folder`, the protocol that the options do not ask for has no port. Nothing holds a free port
    until the server has it: be ready to choose again. Raises PortInUse.
    """
    given = {"http_port": options.http_port, "grpc_port": options.grpc_port, "metrics_port": options.metrics_port}
    if control_folder is not None:
        del given["grpc_port" if options.protocol == "http" else "http_port"]
    for port in given.values():
        if port is not None and not _is_free(port):
            raise PortInUse(
                f"Port {port} is in use by another process.\nChoose another, or leave it out to get a free one."
            )
    if previous is not None and not ports_in_use(previous):
        return replace(previous, control_folder=control_folder)
    # Held open together, so that they differ.
    with contextlib.ExitStack() as stack:
        ports = {"http_port": None, "grpc_port": None, **given}
        for name, port in given.items():
            probe = stack.enter_context(socket.socket())
            probe.bind((_HOST, 0))
            ports[name] = port or int(probe.getsockname()[1])
    return Endpoint(host=_HOST, control_folder=control_folder, **ports)


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
