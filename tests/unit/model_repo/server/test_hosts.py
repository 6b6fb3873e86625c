"""Tests of server starts, with shell scripts in place of Triton: none of them ever becomes ready."""

import json
import os
import socket
from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from http_stub import answering

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


def test_a_server_that_ends_at_its_start_says_why_and_leaves_what_was_there(options: ServerOptions) -> None:
    """It is started once: its port has nothing to do with it."""
    theirs = options.run_dir / "server" / "repository" / "theirs"
    theirs.mkdir(parents=True)
    seen: list[Any] = []
    with pytest.raises(ServerStartFailed, match="ended with status 3") as caught:
        hosts.ProcessHost(options, launcher("echo no such option; exit 3", seen))
    assert caught.value.log_tail == "no such option"
    assert str(options.log_file) in str(caught.value)
    assert [endpoint.control_folder.exists() for endpoint in seen] == [False]
    assert theirs.exists()
    assert sorted(path.name for path in options.run_dir.iterdir()) == ["server", "server.log"]


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


def test_an_output_folder_that_cannot_be_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RepositoryWriteFailed, match="cannot be written"):
        hosts.ProcessHost(ServerOptions(run_dir=tmp_path / "file" / "run"), launcher("exit 1"))


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


def remote(port: int, credentials: tuple[tuple[str, str], ...] = ()) -> Endpoint:
    return Endpoint(host="127.0.0.1", http_port=port, grpc_port=None, metrics_port=None, credentials=credentials)


def test_a_remote_server_must_answer(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with pytest.raises(ServerDied, match=f"No Triton server answers at http://127.0.0.1:{port}"):
        hosts.RemoteHost(remote(port), tmp_path)


def test_a_remote_server_that_starts_is_waited_for(tmp_path: Path) -> None:
    asked: list[str] = []

    def health(_method: str, path: str, _body: bytes) -> tuple[int, bytes]:
        asked.append(path)
        return 503 if len(asked) < 3 else 200, b""

    with answering(health) as port:
        hosts.RemoteHost(remote(port), tmp_path, wait_s=600.0)
    assert len(asked) == 3


def test_a_remote_server_that_refuses_the_credentials_is_not_waited_for(tmp_path: Path) -> None:
    with answering(lambda *_: (401, b"")) as port, pytest.raises(CredentialsRefused) as refused:
        hosts.RemoteHost(remote(port), tmp_path, wait_s=1e6)
    assert refused.value.status == 401
    assert str(refused.value).count("\n") == 1


def test_credentials_that_it_echoes_are_not_shown_in_base64_either(tmp_path: Path) -> None:
    echo = json.dumps({"error": f"s3cret and {b64encode(b's3cret').decode()} are not known"}).encode()
    credentials = (("Authorization", "Bearer s3cret"),)
    with answering(lambda *_: (401, echo)) as port, pytest.raises(CredentialsRefused) as refused:
        hosts.RemoteHost(remote(port, credentials), tmp_path)
    assert "[removed] and [removed]" in str(refused.value)


def test_a_remote_server_that_never_releases_a_model_holds_nothing_up(tmp_path: Path) -> None:
    index = b'[{"name": "m", "version": "1", "state": "UNLOADING"}]'
    with answering(lambda method, *_: (200, index if method == "POST" else b"{}")) as port:
        hosts.RemoteHost(remote(port), tmp_path, unload_wait_s=0.2).free(["m"])  # returns, and raises nothing


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
