"""Tests against a small HTTP server with scripted responses; the contract tests use a real Triton."""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
from http_stub import answering
from strange_servers import Strange, serving

from model_repo.errors import BadServer, RequestRefused, ServerDied, ServerTimeout
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


GOOD = {"name": "m", "max_batch_size": 8, "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [4]}]}
CHANGES: list[dict[str, Any]] = [
    {"name": 7},
    {"max_batch_size": "many"},
    {"input": {}},
    {"input": [7]},
    {"input": [{"name": "\ud800"}]},
    {"parameters": []},
    {"instance_group": [{"count": [1]}]},
    {"instance_group": [{"count": 10**9}]},
    {"instance_group": [{"count": -1}]},
    {"max_batch_size": -5},
    {"input": [{"name": "x", "dims": [-7]}]},
]
ODD = [
    b"<html>Sign in</html>",
    b"",
    b"null",
    b"[]",
    b"7",
    b"[" * 200_000,
    b'{"a":' * 90 + b"1" + b"}" * 90,
    b"\xff\xfe\x00",
    b'{"name": "m", "max_batch_size": NaN}',
    b'{"name": "m", "max_batch_size": 1e999}',
    b'{"name": "m", "max_batch_size": ' + b"9" * 5000 + b"}",
    json.dumps({**GOOD, "name": "other"}).encode(),
    *(json.dumps({**GOOD, **change}).encode() for change in CHANGES),
]


@pytest.mark.parametrize("body", ODD, ids=lambda body: repr(body[:60]))
def test_what_is_no_configuration_is_said_in_two_lines(body: bytes) -> None:
    with server(200, body) as where, pytest.raises(BadServer) as caught:
        control.model_config(where, "m")
    assert len(str(caught.value).splitlines()) == 2
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"{}" * 2,
        b'{"error": 1}',
        b"[7]",
        b'[{"name": 7}]',
        b'[{"name": "m", "state": {}}]',
        b"7",
    ],
)
def test_what_is_no_index_is_said_in_two_lines(body: bytes) -> None:
    ask: Callable[[Endpoint], object]
    for ask in (control.served_models, lambda where: control.model_state(where, "m")):
        with server(200, body) as where, pytest.raises(BadServer) as caught:
            ask(where)
        assert len(str(caught.value).splitlines()) == 2


def test_an_odd_answer_does_not_show_the_credentials_that_it_echoes() -> None:
    body = json.dumps({**GOOD, "max_batch_size": "Bearer secret-of-mine"}).encode()
    with server(200, body) as where, pytest.raises(BadServer) as caught:
        control.model_config(replace(where, credentials=(("Authorization", "Bearer secret-of-mine"),)), "m")
    assert "secret-of-mine" not in str(caught.value)


def test_a_configuration_may_have_more_than_we_know() -> None:
    body = json.dumps({**GOOD, "of_the_future": {"x": [1]}}).encode()
    with server(200, body) as where:
        assert control.model_config(where, "m") == json.loads(body)


def test_at_most_16_mib_of_an_answer_are_read() -> None:
    taken = 0

    def flood(connection: socket.socket) -> None:
        nonlocal taken
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        with suppress(OSError):
            while taken < 300 * 2**20:
                connection.sendall(bytes(2**20))
                taken += 2**20

    with serving(Strange(name="flood", greeting=flood)) as url:
        where = endpoint(int(url.rpartition(":")[2]))
        with pytest.raises(BadServer, match="16 MiB"):
            control.model_config(where, "m")
        assert not control.is_live(where)
    assert taken < 2 * 64 * 2**20  # with what the sockets take in between


@pytest.mark.parametrize("body", ODD, ids=lambda body: repr(body[:60]))
def test_no_answer_is_too_odd_for_a_version_or_a_refusal(body: bytes) -> None:
    with server(200, body) as where:
        assert control.server_says(where, "version") is None
    with server(500, body) as where, pytest.raises(RequestRefused):
        control.unload_model(where, "m")
