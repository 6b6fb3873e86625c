"""How servers are started, with shell scripts in place of Triton: none of them ever becomes ready."""

import os
import socket
from dataclasses import replace

import pytest

from model_repo import hosts
from model_repo.errors import LauncherMissing, RepositoryWriteFailed, ServerDied, ServerStartFailed
from model_repo.options import ServerOptions
from model_repo.process import Launch
from model_repo.spec import Endpoint


def launcher(script, seen=None):
    """Starts the script, and notes the endpoint that the server was told to answer at."""

    def launch(_options, endpoint, folder, _token):
        if seen is not None:
            seen.append(endpoint)
        return Launch(command=("/bin/sh", "-c", script), environment=os.environ, folder=folder)

    return launch


@pytest.fixture
def options(tmp_path):
    return ServerOptions(run_dir=tmp_path / "run", exit_grace_s=0.1, start_timeout_s=0.2)


def test_a_server_that_ends_at_its_start_says_why(options):
    with pytest.raises(ServerStartFailed, match="ended with status 3") as caught:
        hosts.ProcessHost(options, launcher("echo no such option; exit 3"))
    assert caught.value.log_tail == "no such option"
    assert str(options.log_file) in str(caught.value)


def test_a_server_that_is_never_ready_is_given_up(options):
    with pytest.raises(ServerStartFailed, match="not ready in time"):
        hosts.ProcessHost(options, launcher("exec sleep 60"))


def test_somebody_elses_port_is_left_alone_and_others_are_tried(options):
    """The port is taken between its choice and the server's start, each time."""
    seen, takers = [], []

    def launch(*arguments):
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


@pytest.mark.parametrize("script", ["exit 1", "exec sleep 60"])
def test_a_failed_start_leaves_no_control_folder(options, script):
    seen = []
    with pytest.raises(ServerStartFailed):
        hosts.ProcessHost(options, launcher(script, seen))
    assert not seen[0].control_folder.exists()


def test_a_launcher_that_fails_leaves_no_control_folder(options):
    seen = []

    def launch(_options, endpoint, *_):
        seen.append(endpoint)
        assert endpoint.control_folder.stat().st_mode & 0o777 == 0o700
        raise LauncherMissing("not here\nsee there")

    with pytest.raises(LauncherMissing):
        hosts.ProcessHost(options, launch)
    assert not seen[0].control_folder.exists()


def test_a_failure_that_has_nothing_to_do_with_ports_is_not_repeated(options):
    seen = []
    with pytest.raises(ServerStartFailed):
        hosts.ProcessHost(options, launcher("exit 1", seen))
    assert len(seen) == 1


def test_an_output_folder_that_cannot_be_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RepositoryWriteFailed, match="cannot be written"):
        hosts.ProcessHost(ServerOptions(run_dir=tmp_path / "file" / "run"), launcher("exit 1"))


def test_what_is_in_the_folder_already_stays(options):
    theirs = options.run_dir / "server" / "repository" / "theirs"
    theirs.mkdir(parents=True)
    with pytest.raises(ServerStartFailed):
        hosts.ProcessHost(options, launcher("exit 1"))
    assert theirs.exists()
    assert sorted(path.name for path in options.run_dir.iterdir()) == ["server", "server.log"]


def test_what_the_server_needs_while_it_runs_goes_where_it_is_told(options, tmp_path):
    seen = []

    def launch(_options, _endpoint, folder, _token):
        seen.append(folder)
        return Launch(command=("/bin/sh", "-c", "exit 1"), environment=os.environ, folder=folder)

    (tmp_path / "scratch").mkdir()
    with pytest.raises(ServerStartFailed):
        hosts.ProcessHost(replace(options, scratch_dir=tmp_path / "scratch", run_dir=tmp_path), launch)
    assert {folder.parent for folder in seen} == {tmp_path / "scratch"}
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_remote_server_must_answer(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    nobody = Endpoint(host="127.0.0.1", http_port=port, grpc_port=port, metrics_port=None)
    with pytest.raises(ServerDied, match=f"No Triton server answers at http://127.0.0.1:{port}"):
        hosts.RemoteHost(nobody, tmp_path, unload_timeout_s=1)


@pytest.mark.parametrize("name", ["with blank", "quote'd", "dollar$", "semi;colon"])
def test_a_folder_with_a_name_for_shells_to_misread_gets_a_plain_one(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    plain = hosts._plain_path(folder, f"tritune-test-{os.getpid()}")
    try:
        assert plain != folder
        assert plain.samefile(folder)
    finally:
        plain.unlink()


def test_a_plain_folder_keeps_its_name(tmp_path):
    assert hosts._plain_path(tmp_path, "unused") == tmp_path
