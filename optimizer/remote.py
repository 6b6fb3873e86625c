"""The address of a server that somebody else runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loadgen.addresses import parsed_address, shown_address
from model_repo.spec import Endpoint
from optimizer.errors import BadInput

if TYPE_CHECKING:
    from optimizer.config import OptimizeConfig


def remote_endpoint(config: OptimizeConfig) -> Endpoint | None:
    """Where `--server-url` points; None for the servers that we start ourselves. Raises BadInput.

    Triton's other ports are taken to follow the HTTP port, as they do by default (8000, 8001, 8002).
    """
    if config.server != "remote" or config.server_url is None:
        return None
    parts = parsed_address(config.server_url)
    if parts is None or parts.scheme != "http" or not parts.hostname or parts.path.strip("/"):
        raise BadInput(
            f"--server-url {shown_address(config.server_url)} is not the address of an HTTP server.",
            "Write http://HOST:PORT",
        )
    port = parts.port or 8000
    return Endpoint(host=parts.hostname, http_port=port, grpc_port=port + 1, metrics_port=port + 2)
