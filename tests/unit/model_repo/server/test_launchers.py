import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from model_repo.errors import LauncherMissing
from model_repo.server import launchers
from model_repo.server.options import ServerOptions
from model_repo.server.process import Launch
from model_repo.spec import Endpoint

ENDPOINT = Endpoint(host="127.0.0.1", http_port=9100, grpc_port=9101, metrics_port=9102)


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Any]:
    """Return a function that makes a program of this name the only one on PATH."""

    def on_path(name: Any) -> Any:
        program = tmp_path / "bin" / name
        program.parent.mkdir()
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(program.parent))
        return program

    return on_path


def launch(kind: Any, folder: Path, **changes: Any) -> Launch:
    options = ServerOptions(run_dir=folder, kind=kind, **changes)
    return launchers.LAUNCHERS[kind](options, ENDPOINT, folder / "server", "tritune-42")


def test_for_a_gpu_memory_is_kept_and_shared_memory_grows_in_large_steps(
    tmp_path: Path, on_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path("tritonserver")
    assert not set(launchers.KEEP_MEMORY) & set(launch("local", tmp_path).environment)
    with_gpu = launch("local", tmp_path, gpu=True)
    assert with_gpu.environment.items() >= launchers.KEEP_MEMORY.items()
    room = os.statvfs("/dev/shm")
    steps = [word for word in with_gpu.command if "shm-growth-byte-size" in word]
    assert len(steps) == (room.f_bavail * room.f_frsize >= 32 * launchers.SHARED_MEMORY_STEP_BYTES)
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1")
    assert launch("local", tmp_path, gpu=True).environment["MALLOC_TRIM_THRESHOLD_"] == "1"


def test_a_server_gets_the_flags_of_its_options_and_no_listener_but_on_loopback(
    tmp_path: Path, on_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path("tritonserver")
    monkeypatch.setenv("AIP_MODE", "PREDICTION")
    assert "AIP_MODE" not in launch("local", tmp_path).environment
    command = launch("local", tmp_path).command
    assert {"--allow-gpu-metrics=false", "--disable-auto-complete-config"} <= set(command)
    other = launch("local", tmp_path, gpu=True, completes_config=True).command
    assert "--allow-gpu-metrics=true" in other
    assert "--disable-auto-complete-config" not in other
    assert {word.split("=")[1] for word in command if "-address=" in word} == {"127.0.0.1"}
    assert {"--http-port=9100", "--grpc-port=9101", "--metrics-port=9102"} <= set(command)


def test_docker_sees_what_a_repository_links_to(tmp_path: Path, on_path: Any) -> None:
    on_path("docker")
    repository = tmp_path / "server" / "repository"
    repository.mkdir(parents=True)
    (repository / "cnn").symlink_to(tmp_path / "elsewhere")
    words = launch("docker", tmp_path).command
    assert words[words.index(f"{tmp_path}/elsewhere:{tmp_path}/elsewhere:ro") - 1] == "--volume"


def test_docker_gets_the_gpus_that_this_process_has(
    tmp_path: Path, on_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path("docker")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    words = list(launch("docker", tmp_path, gpu=True).command)
    assert words[words.index("--gpus") + 1] == '"device=GPU-a,GPU-b"'


@pytest.mark.parametrize(("kind", "hint"), [("local", "no tritonserver on PATH"), ("docker", "no docker on PATH")])
def test_a_missing_program_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, hint: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LauncherMissing, match=hint) as caught:
        launch(kind, tmp_path)
    assert len(str(caught.value).splitlines()) == 2
    assert "'.[embedded]'" in str(caught.value)


def test_a_missing_wheel_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(LauncherMissing, match=r"'\.\[embedded\]'"):
        launch("embedded", tmp_path)


def test_embedded_links_the_stub_of_this_python(tmp_path: Path) -> None:
    found = launch("embedded", tmp_path)
    backend = tmp_path / "server" / "backends" / "python"
    assert f"--backend-directory={tmp_path}/server/backends" in found.command
    stub = (backend / "triton_python_backend_stub").resolve(strict=True)
    assert stub.parent.name == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert (backend / "libtriton_python.so").resolve(strict=True)
    launch("embedded", tmp_path)  # again, over the existing links


def test_a_python_without_its_shared_library_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launchers.sysconfig, "get_config_var", lambda _: "/nowhere")  # type: ignore[attr-defined]
    with pytest.raises(LauncherMissing, match=r"libpython9\.99\.so.*\nRun: apt-get install libpython9\.99"):
        launchers._require_libpython("9.99")


def test_the_server_finds_the_packages_we_run_with(tmp_path: Path, on_path: Any) -> None:
    on_path("tritonserver")
    found = launch("local", tmp_path)
    home = found.folder / "python"
    assert found.environment["VIRTUAL_ENV"] == str(home)
    assert found.environment["PATH"].split(os.pathsep)[:2] == [str(home / "bin"), str(Path(sys.prefix, "bin"))]


@pytest.mark.parametrize("kind", ["embedded", "local", "docker"])
def test_no_server_runs_in_our_current_directory(tmp_path: Path, on_path: Any, kind: str) -> None:
    on_path({"local": "tritonserver"}.get(kind, kind))
    assert launch(kind, tmp_path).folder == tmp_path / "server"


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "remote"},
        {"remote": ENDPOINT},
        {"http_port": 9100, "grpc_port": 9100},
        {"http_port": 0},
        {"metrics_port": 65536},
    ],
)
def test_options_cannot_contradict_themselves(tmp_path: Path, changes: Any) -> None:
    with pytest.raises(ValueError, match=r"repository or journals|must be different"):
        ServerOptions(run_dir=tmp_path, **changes)
