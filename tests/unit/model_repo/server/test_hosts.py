"""Tests of server starts, with shell scripts in place of Triton: none of them ever becomes ready."""

import os
import socket
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from model_repo.errors import (
    CredentialsRefused,
    LauncherMissing,
    RepositoryWriteFailed,
    ServerDied,
    ServerStartFailed,
)
from model_repo.server import hosts
from model_repo.server.options import ServerOptions
from model_repo.server.process import Launch
from model_repo.spec import Endpoint


def launcher(script: str, seen: list[Any] | None = None) -> Any:
    """Return a launcher that starts the script and appends the server's endpoint to `seen`."""

    def launch(_options: Any, endpoint: Any, folder: Path, _token: Any) -> Launch:
        if seen is not None:
            seen.append(endpoint)
        return Launch(command=("/bin/sh", "-c", script), environment=os.environ, folder=folder)

    return launch


@pytest.fixture
def options(tmp_path: Path) -> ServerOptions:
    """Minutes for a start, which a script that ends does not need."""
    return ServerOptions(run_dir=tmp_path / "run", exit_grace_s=0.1, start_timeout_s=240.0)


@pytest.fixture
def impatient(options: ServerOptions) -> ServerOptions:
    return replace(options, start_timeout_s=0.2)


def test_a_server_that_ends_at_its_start_says_why(options: ServerOptions) -> None:
    with pytest.raises(ServerStartFailed, match="ended with status 3") as caught:
        hosts.ProcessHost(options, launcher("echo no such option; exit 3"))
    assert caught.value.log_tail == "no such option"
    assert str(options.log_file) in str(caught.value)


def test_a_server_that_is_never_ready_is_given_up(impatient: ServerOptions) -> None:
    seen: list[Any] = []
    with pytest.raises(ServerStartFailed, match="not ready in time"):
        hosts.ProcessHost(impatient, launcher("exec sleep 600", seen))
    assert not seen[0].control_folder.exists()


def test_somebody_elses_port_is_left_alone_and_others_are_tried(options: ServerOptions) -> None:
    """Another process takes the port between its choice and the server's start, each time."""
    seen, takers = [], []  # type: ignore[var-annotated]

    def launch(*arguments: Any) -> Any:
        found = launcher("exit 1", seen)(*arguments)
        taker = socket.socket()
        taker.bind(("127.0.0.1", seen[-1].http_port))
        takers.append(taker)
        return found

    with pytest.raises(ServerStartFailed):
        hosts.ProcessHost(options, launch)
    for taker in takers:
        taker.close()
    ports = [endpoint.http_port for endpoint in seen]
    assert len(ports) > 1
    assert len(set(ports)) == len(ports)


def test_a_launcher_that_fails_leaves_no_control_folder(options: ServerOptions) -> None:
    seen = []

    def launch(_options: Any, endpoint: Any, *_: Any) -> None:
        seen.append(endpoint)
        assert endpoint.control_folder.stat().st_mode & 0o777 == 0o700
        raise LauncherMissing("not here\nsee there")

    with pytest.raises(LauncherMissing):
        hosts.ProcessHost(options, launch)
    assert not seen[0].control_folder.exists()


def test_a_failure_that_has_nothing_to_do_with_ports_is_not_repeated_and_leaves_no_control_folder(
    options: ServerOptions,
) -> None:
    seen: list[Any] = []
    with pytest.raises(ServerStartFailed):
        hosts.ProcessHost(options, launcher("exit 1", seen))
    assert len(seen) == 1
    assert not seen[0].control_folder.exists()


def test_an_output_folder_that_cannot_be_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RepositoryWriteFailed, match="cannot be written"):
        hosts.ProcessHost(ServerOptions(run_dir=tmp_path / "file" / "run"), launcher("exit 1"))


def test_what_is_in_the_folder_already_stays(options: ServerOptions) -> None:
    theirs = options.run_dir / "server" / "repository" / "theirs"
    theirs.mkdir(parents=True)
    with pytest.raises(ServerStartFailed):
        hosts.ProcessHost(options, launcher("exit 1"))
    assert theirs.exists()
    assert sorted(path.name for path in options.run_dir.iterdir()) == ["server", "server.log"]


def test_what_the_server_needs_while_it_runs_goes_where_it_is_told(options: ServerOptions, tmp_path: Path) -> None:
    seen = []

    def launch(_options: Any, _endpoint: Any, folder: Path, _token: Any) -> Launch:
        seen.append(folder)
        return Launch(command=("/bin/sh", "-c", "exit 1"), environment=os.environ, folder=folder)

    (tmp_path / "scratch").mkdir()
    with pytest.raises(ServerStartFailed):
        hosts.ProcessHost(replace(options, scratch_dir=tmp_path / "scratch", run_dir=tmp_path), launch)
    assert {folder.parent for folder in seen} == {tmp_path / "scratch"}
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_remote_server_must_answer(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    nobody = Endpoint(host="127.0.0.1", http_port=port, grpc_port=port, metrics_port=None)
    with pytest.raises(ServerDied, match=f"No Triton server answers at http://127.0.0.1:{port}"):
        hosts.RemoteHost(nobody, tmp_path)


def test_a_remote_server_that_starts_is_waited_for(tmp_path: Path) -> None:
    asked: list[str] = []

    class Starting(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # its health
            asked.append(self.path)
            self.send_response(503 if len(asked) < 3 else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Starting) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        endpoint = Endpoint(host="127.0.0.1", http_port=port, grpc_port=None, metrics_port=None)
        hosts.RemoteHost(endpoint, tmp_path, wait_s=600.0)
        server.shutdown()
    assert len(asked) == 3


def test_a_remote_server_that_refuses_the_credentials_is_not_waited_for(tmp_path: Path) -> None:
    class Closed(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(401)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Closed) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        endpoint = Endpoint(host="127.0.0.1", http_port=port, grpc_port=None, metrics_port=None)
        with pytest.raises(CredentialsRefused) as refused:
            hosts.RemoteHost(endpoint, tmp_path, wait_s=1e6)
        server.shutdown()
    assert refused.value.status == 401
    assert str(refused.value).count("\n") == 1


def test_a_remote_server_that_never_releases_a_model_holds_nothing_up(tmp_path: Path) -> None:
    class Unloading(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # the repository index
            self.answer(b'[{"name": "m", "version": "1", "state": "UNLOADING"}]')

        def do_GET(self) -> None:  # its health
            self.answer(b"{}")

        def answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Unloading) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        endpoint = Endpoint(host="127.0.0.1", http_port=port, grpc_port=None, metrics_port=None)
        hosts.RemoteHost(endpoint, tmp_path, unload_wait_s=0.2).free(["m"])  # returns, and raises nothing
        server.shutdown()


@pytest.mark.parametrize("name", ["with blank", "quote'd", "dollar$", "semi;colon"])
def test_a_folder_with_a_name_for_shells_to_misread_gets_a_plain_one(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    plain = hosts._plain_path(folder, f"tritune-test-{os.getpid()}")
    try:
        assert plain != folder
        assert plain.samefile(folder)
    finally:
        plain.unlink()


def test_a_plain_folder_keeps_its_name(tmp_path: Path) -> None:
    assert hosts._plain_path(tmp_path, "unused") == tmp_path
