"""Nobody but the user who started a server controls it: no web page, and no other user of the machine."""

import base64
import http.client
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
from _pytest.mark import ParameterSet
from engines import cnn_engine
from google.protobuf.message import Message  # type: ignore[import-untyped]
from infer import infer
from server_kinds import docker_on_path, tritonserver_on_path
from tritonclient.grpc import service_pb2, service_pb2_grpc

from loadgen.errors import TargetUnreachable
from loadgen.spec.target import Target
from loadgen.status import OK
from loadgen.wire.http2_sending import status_of
from loadgen.wire.questions import grpc_call
from model_repo.repository.write import write_final_repository
from model_repo.server import control
from model_repo.server.hosts import ProcessHost, serve_repository
from model_repo.server.options import DEFAULT_IMAGE, MEMORY_KEY_HEADER, ServerOptions
from model_repo.server.triton import serve
from model_repo.spec import Endpoint, ServingConfig

pytestmark = pytest.mark.system

NOBODY = 65534
KINDS = ("embedded", "local", "docker")

PLANTED = """\
import pathlib
pathlib.Path({marker!r}).touch()
class TritonPythonModel:
    def execute(self, requests):
        return []
"""
PLANTED_CONFIG = {
    "backend": "python",
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [1]}],
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [1]}],
}


@dataclass(frozen=True)
class Running:
    """A server with the model `cnn`, the process that it is, and a file that planted code would make."""

    endpoint: Endpoint
    kind: str
    pid: int
    marker: Path


def process_of(host: object) -> int:
    assert isinstance(host, ProcessHost)
    return host._process.pid


@contextmanager
def on_trial(folder: Path, kind: Any, protocol: Any) -> Iterator[Running]:
    options = ServerOptions(run_dir=folder, kind=kind, protocol=protocol, runtime="python", exit_grace_s=0.1)
    with serve(options) as server:
        server.load(ServingConfig(engine=cnn_engine(folder), max_batch_size=4))
        yield Running(server.endpoint, kind, process_of(server._host), folder / "marker")


@contextmanager
def standing(folder: Path, kind: Any) -> Iterator[Running]:
    write_final_repository(folder / "repository", ServingConfig(engine=cnn_engine(folder), max_batch_size=4))
    options = ServerOptions(run_dir=folder, kind=kind, runtime="python", exit_grace_s=0.1)
    with serve_repository(folder / "repository", options) as served:
        yield Running(served.endpoint, kind, process_of(served), folder / "marker")


STARTED: dict[str, Callable[[Path, str], AbstractContextManager[Running]]] = {
    "trials over http": lambda folder, kind: on_trial(folder, kind, "http"),
    "trials over grpc": lambda folder, kind: on_trial(folder, kind, "grpc"),
    "optimize serve": standing,
}


def starts() -> Iterator[ParameterSet]:
    """Every kind of server and use of it; those of our own program are in the gate."""
    for kind in KINDS:
        for use in STARTED:
            yield pytest.param((kind, use), id=f"{kind} {use}", marks=[pytest.mark.long] * (kind != "embedded"))


@pytest.fixture(scope="module", params=starts())
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    kind, use = request.param
    folder = tmp_path_factory.mktemp("closed")
    with ExitStack() as stack:
        if kind == "local":
            stack.enter_context(tritonserver_on_path(folder))
        if kind == "docker":
            stack.enter_context(docker_on_path(folder, DEFAULT_IMAGE))
        yield stack.enter_context(STARTED[use](folder, kind))


def posted(endpoint: Endpoint, path: str, document: Any, headers: dict[str, str] | None = None) -> int:
    """The status of what any page in a browser may send without asking first: a form's POST."""
    connection = http.client.HTTPConnection(endpoint.host, endpoint.http_port, timeout=120)
    page = {"Content-Type": "text/plain", "Origin": "https://example.com", **(headers or {})}
    body = document if isinstance(document, bytes) else json.dumps(document)
    connection.request("POST", path, body=body, headers=page)
    status = connection.getresponse().status
    connection.close()
    return status


def harmful_posts(running: Running) -> Iterator[tuple[str, object]]:
    code = base64.b64encode(PLANTED.format(marker=str(running.marker)).encode()).decode()
    planted = {"parameters": {"config": json.dumps(PLANTED_CONFIG), "file:1/model.py": code}}
    yield "/v2/repository/models/planted/load", planted
    yield "/v2/repository/models/cnn/load", planted
    yield "/v2/repository/models/cnn/load", {}
    yield "/v2/repository/models/cnn/unload", {}
    region = {"key": "/anything", "offset": 0, "byte_size": 1}
    yield "/v2/systemsharedmemory/region/theirs/register", region
    yield "/v2/systemsharedmemory/unregister", {}
    yield "/v2/cudasharedmemory/region/theirs/register", {**region, "raw_handle": {"b64": ""}, "device_id": 0}
    yield "/v2/trace/setting", {"trace_level": ["TIMESTAMPS"], "trace_file": str(running.marker)}
    yield "/v2/models/cnn/trace/setting", {"trace_file": str(running.marker)}
    yield "/v2/logging", {"log_file": str(running.marker)}


def harmful_calls(running: Running) -> Iterator[tuple[str, object]]:
    code = PLANTED.format(marker=str(running.marker)).encode()
    parameter = service_pb2.ModelRepositoryParameter
    planted = {
        "config": parameter(string_param=json.dumps(PLANTED_CONFIG)),
        "file:1/model.py": parameter(bytes_param=code),
    }
    yield "RepositoryModelLoad", service_pb2.RepositoryModelLoadRequest(model_name="planted", parameters=planted)
    yield "RepositoryModelLoad", service_pb2.RepositoryModelLoadRequest(model_name="cnn")
    yield "RepositoryModelUnload", service_pb2.RepositoryModelUnloadRequest(model_name="cnn")
    region = {"name": "theirs", "offset": 0, "byte_size": 1}
    yield (
        "SystemSharedMemoryRegister",
        service_pb2.SystemSharedMemoryRegisterRequest(key="/anything", **region),
    )
    yield "SystemSharedMemoryStatus", service_pb2.SystemSharedMemoryStatusRequest()
    yield "SystemSharedMemoryUnregister", service_pb2.SystemSharedMemoryUnregisterRequest()
    yield "CudaSharedMemoryStatus", service_pb2.CudaSharedMemoryStatusRequest()
    setting = {"trace_file": service_pb2.TraceSettingRequest.SettingValue(value=[str(running.marker)])}
    yield "TraceSetting", service_pb2.TraceSettingRequest(settings=setting)
    log_file = {"log_file": service_pb2.LogSettingsRequest.SettingValue(string_param=str(running.marker))}
    yield "LogSettings", service_pb2.LogSettingsRequest(settings=log_file)


def locks(running: Running) -> list[tuple[str, str]]:
    """Every header that the server's command line names, as any user can read it in the process list."""
    words = [word for word in as_nobody(READ_COMMAND_LINE, running.pid).split("\0") if "-restricted-" in word]
    assert words
    headers = [word.partition("=")[2].partition(":")[2].rpartition("=") for word in words]
    return [(name, value) for name, _, value in headers]


READ_COMMAND_LINE = "import sys; print(open(f'/proc/{sys.argv[1]}/cmdline').read())"


def as_nobody(code: str, *arguments: object) -> str:
    """What a second user's Python prints."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    done = subprocess.run(
        ["/usr/bin/env", "python3", "-I", "-c", code, *map(str, arguments)],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd="/",
        env={"PATH": os.defpath},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def assert_unharmed(running: Running) -> None:
    assert not running.marker.exists()
    assert control.is_model_ready(running.endpoint, "cnn")
    if running.endpoint.http_port is not None:
        answer = infer(running.endpoint, "cnn", {"image": np.zeros((1, 3, 32, 32), np.float32)})
        assert answer["logits"].shape == (1, 10)


def test_whatever_does_harm_is_refused(running: Running) -> None:
    """On each protocol that has a TCP port; the other one has a control folder (see below)."""
    endpoint = running.endpoint
    if endpoint.http_port is not None:
        for path, document in harmful_posts(running):
            assert posted(endpoint, path, document) in (400, 403, 503), path
    if endpoint.grpc_port is not None:
        with grpc.insecure_channel(f"{endpoint.host}:{endpoint.grpc_port}") as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            for method, request in harmful_calls(running):
                with pytest.raises(grpc.RpcError) as caught:
                    getattr(stub, method)(request, timeout=120)
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE, method
    assert_unharmed(running)


def test_a_foreign_request_for_an_inference_cannot_end_a_trials_server(running: Running) -> None:
    """Triton reads JSON recursively: two million brackets end it. `optimize serve` infers for everybody."""
    endpoint = running.endpoint
    if endpoint.control_folder is None:
        assert endpoint.headers("http") == ()
        return
    if endpoint.http_port is not None:
        for path in ("/v2/models/cnn/infer", "/v2/models/cnn/versions/1/infer", "/v2/models/cnn/generate"):
            for headers in ({}, {"tritune-key": "guessed"}):
                assert posted(endpoint, path, b"[" * 2_000_000, headers) == 403
    else:
        message = service_pb2.ModelInferRequest(model_name="cnn")
        assert called_with(endpoint, "ModelInfer", message, ("tritune-key", "guessed")) not in (OK, None)
    assert_unharmed(running)


def test_the_command_line_tells_nobody_how_to_do_harm(running: Running) -> None:
    """A second user reads it, and sends what it names: as it stands there, and cut at the colon."""
    endpoint = running.endpoint
    for name, value in locks(running):
        start, _, end = name.partition(":")
        for header in {(name, value), (start, f"{end}: {value}"), (start, f"{end}={value}"), (start, value)}:
            if endpoint.http_port is not None:
                for path, document in harmful_posts(running):
                    status = as_nobody(POST, endpoint.http_port, path, json.dumps(document), *header)
                    assert status != "200", (path, header)
            if endpoint.grpc_port is not None:
                for method, request in harmful_calls(running):
                    assert called_with(endpoint, method, request, header) != OK, (method, header)
    assert_unharmed(running)


def called_with(endpoint: Endpoint, method: str, request: Message, header: tuple[str, str]) -> int | None:
    """The outcome of a call with a header that gRPC's own library would refuse to send; None: it was cut off."""
    target = Target(url=f"grpc://{endpoint.host}:{endpoint.grpc_port}", model_name="cnn")
    object.__setattr__(target, "headers", ((f"triton-grpc-protocol-{header[0]}", header[1]),))
    try:
        path = f"/inference.GRPCInferenceService/{method}"
        return status_of(grpc_call(target, path, request.SerializeToString()).fields)[0]
    except TargetUnreachable:
        return None


def test_another_user_finds_nothing_to_open(running: Running) -> None:
    """Neither the control socket, nor the environment of the server or of a model's process."""
    family = [running.pid, *(child.pid for child in psutil.Process(running.pid).children(recursive=True))]
    folder = running.endpoint.control_folder
    sockets = [] if folder is None else [str(path) for path in folder.iterdir()]
    assert len(sockets) == (folder is not None)
    files = [] if folder is None else [str(folder)]
    environments = [f"/proc/{pid}/environ" for pid in family]
    assert as_nobody(OPEN, *files, *sockets, *environments) == ""


OPEN = """
import os, socket, sys
for path in sys.argv[1:]:
    for way in (os.O_RDONLY, os.O_WRONLY, os.O_PATH | os.O_DIRECTORY):
        try:
            fd = os.open(path, way)
            os.listdir(fd) if way & os.O_DIRECTORY else None
            print("opened", path, way)
        except OSError:
            pass
    try:
        socket.socket(socket.AF_UNIX).connect(path)
        print("connected to", path)
    except OSError:
        pass
"""


def test_the_key_of_shared_memory_opens_nothing_else(tmp_path: Path) -> None:
    options = ServerOptions(run_dir=tmp_path, shared_memory=True, exit_grace_s=0.1)
    with serve(options) as server:
        server.load(ServingConfig(engine=cnn_engine(tmp_path), max_batch_size=4))
        running = Running(server.endpoint, "embedded", process_of(server._host), tmp_path / "marker")
        token = control.server_says(server.endpoint, "name", timeout_s=120)
        file = Path(f"/dev/shm/{token}-memory-key")
        header = {MEMORY_KEY_HEADER: file.read_text()}
        region = "/v2/systemsharedmemory/unregister"
        assert posted(server.endpoint, region, {}) == 403
        assert posted(server.endpoint, region, {}, {MEMORY_KEY_HEADER: "guessed"}) == 403
        assert posted(server.endpoint, region, {}, header) == 200
        for path, document in harmful_posts(running):
            if "sharedmemory" not in path:
                assert posted(server.endpoint, path, document, header) == 403, path
        assert as_nobody(OPEN, file) == ""
        assert_unharmed(running)
    assert not file.exists()


POST = """
import socket, sys
port, path, body, name, value = sys.argv[1:]
with socket.create_connection(("127.0.0.1", int(port)), timeout=30) as connection:
    head = f"POST {path} HTTP/1.1\\r\\nHost: x\\r\\n{name}: {value}\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n"
    connection.sendall((head + body).encode())
    print(connection.recv(4096).decode().split()[1], end="")
"""
