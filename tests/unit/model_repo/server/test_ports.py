import dataclasses
import socket
from pathlib import Path

import pytest

from model_repo.errors import PortInUse
from model_repo.server.options import ServerOptions, choose_endpoint


@pytest.fixture
def options(tmp_path: Path) -> ServerOptions:
    return ServerOptions(run_dir=tmp_path)


def test_chosen_ports_differ_and_given_ones_are_kept(options: ServerOptions) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = taken.getsockname()[1]
    endpoint = choose_endpoint(dataclasses.replace(options, grpc_port=free))
    assert endpoint.grpc_port == free
    assert len({endpoint.http_port, endpoint.grpc_port, endpoint.metrics_port}) == 3
    assert endpoint.host == "127.0.0.1"


def test_a_given_port_in_use_is_refused(options: ServerOptions) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(PortInUse):
        choose_endpoint(dataclasses.replace(options, metrics_port=taken.getsockname()[1]))


def test_a_restart_comes_back_to_its_ports_where_it_can(options: ServerOptions) -> None:
    first = choose_endpoint(options)
    assert choose_endpoint(options, first) == first
    with socket.create_server(("127.0.0.1", first.grpc_port)):
        assert choose_endpoint(options, first) != first
