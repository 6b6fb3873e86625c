"""Tests against a small HTTP server with scripted responses; the contract tests use a real Triton."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from http_stub import answering

from model_repo.errors import RequestRefused, ServerDied, ServerTimeout
from model_repo.server import control
from model_repo.spec import Endpoint


def endpoint(port: int | None) -> Endpoint:
    return Endpoint(host="127.0.0.1", http_port=port, grpc_port=port, metrics_port=None)


@contextmanager
def server(status: int, body: bytes) -> Iterator[Endpoint]:
    with answering(lambda *_: (status, body)) as port:
        yield endpoint(port)


@pytest.fixture
def silent() -> Iterator[Endpoint]:
    """Yield the endpoint of a server that accepts connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield endpoint(listener.getsockname()[1])


@pytest.fixture
def nobody() -> Endpoint:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return endpoint(port)


def test_the_state_of_a_model() -> None:
    index = [
        {"name": "other", "state": "READY"},
        {"name": "m", "version": "1", "state": "UNLOADING"},
        {"name": "new"},
    ]
    with server(200, json.dumps(index).encode()) as where:
        assert control.model_state(where, "m") == "UNLOADING"
        assert control.model_state(where, "new") is None
        assert control.model_state(where, "unheard of") is None


def test_a_refusal_carries_what_the_server_said() -> None:
    with server(400, b'{"error": "no such model"}') as where:
        with pytest.raises(RequestRefused, match="no such model") as caught:
            control.load_model(where, "m", timeout_s=240)
        assert caught.value.status == 400
        assert not control.is_live(where)


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'"text"', b""])
def test_a_refusal_by_something_else_is_a_clear_error(body: bytes) -> None:
    with server(502, body) as where, pytest.raises(RequestRefused, match=r"502.*\nIs it a Triton server"):
        control.unload_model(where, "m")


def test_silence_is_a_time_out(silent: Endpoint) -> None:
    with pytest.raises(ServerTimeout, match=r"within 0\.05 s"):
        control.load_model(silent, "m", timeout_s=0.05)
    assert not control.is_live(silent, timeout_s=0.05)


def test_nobody_there(nobody: Endpoint) -> None:
    with pytest.raises(ServerDied, match="No server answers"):
        control.load_model(nobody, "m", timeout_s=240)
    assert not control.is_live(nobody)
