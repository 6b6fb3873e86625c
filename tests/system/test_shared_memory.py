"""Inputs in shared memory, read by the real embedded server."""

import http.client
import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from engines import cnn_engine, token_engine
from tritonclient.grpc import service_pb2
from waiting import wait_until

from loadgen.errors import PayloadError, TargetRefused
from loadgen.sending.generator import LoadGenerator
from loadgen.sending.shared_memory import PREFIX, SHARED, shared_inputs, with_memory_key
from loadgen.spec.plan import ClosedLoopPlan, LoadPlan, Payload
from loadgen.spec.target import Target
from loadgen.traffic.payloads import grpc_request, http_request, raw_inputs, request_tensors
from loadgen.wire.questions import _ask, _Question, read_model_info
from model_repo.server.options import ServerOptions
from model_repo.server.triton import serve
from model_repo.spec import Endpoint, Engine, ServingConfig

pytestmark = pytest.mark.system

STATUS = _Question(path="", method="SystemSharedMemoryStatus", fields={})
SHARED_PAYLOAD = Payload(shared_memory="system")


@contextmanager
def serving(folder: Path, engine: Engine, protocol: Any = "http") -> Iterator[Endpoint]:
    config = ServingConfig(engine=engine, max_batch_size=4, intra_op_threads=1)
    with serve(ServerOptions(run_dir=folder, protocol=protocol, shared_memory=True)) as server:
        server.load(config)
        yield server.endpoint


def target_of(endpoint: Endpoint, engine: Engine, protocol: Any = "http") -> Target:
    return Target(url=endpoint.url(protocol), model_name=engine.model_name, headers=endpoint.headers(protocol))


def regions(endpoint: Endpoint) -> list[str]:
    """What the server knows of shared memory, and the names that are there."""
    if endpoint.grpc_port is None:
        target = with_memory_key(Target(url=endpoint.url("http"), model_name="any"))
        connection = http.client.HTTPConnection(endpoint.host, endpoint.http_port, timeout=120)
        connection.request("GET", "/v2/systemsharedmemory/status", headers=dict(target.headers))
        known = [region["name"] for region in json.loads(connection.getresponse().read())]
        connection.close()
    else:
        target = with_memory_key(Target(url=endpoint.url("grpc"), model_name="any"))
        known = list(_ask(target, STATUS).document.get("regions", {}))
    return known + files_left()


def files_left() -> list[str]:
    """The names of this test's own files: others may share memory meanwhile."""
    ours = [os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))]
    return [path.name for pid in ours for path in SHARED.glob(f"{PREFIX}{pid}-*")]


def http_answer(target: Target, request: bytes) -> bytes:
    head, _, body = request.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    connection = http.client.HTTPConnection(target.host, target.port, timeout=120)
    connection.request("POST", first.split()[1], body=body, headers=dict(line.split(": ", 1) for line in lines))
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    assert answer.status == 200, data
    return data


def grpc_answer(target: Target, request: bytes) -> bytes:
    import grpc
    from tritonclient.grpc import service_pb2_grpc

    with grpc.insecure_channel(f"{target.host}:{target.port}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        message = service_pb2.ModelInferRequest.FromString(request)
        answer = stub.ModelInfer(message, metadata=target.headers, timeout=120)
    return b"".join(answer.raw_output_contents)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("engine_of", [cnn_engine, token_engine])
def test_the_server_reads_the_inputs_where_they_are(tmp_path: Path, protocol: str, engine_of: Any) -> None:
    engine = engine_of(tmp_path)
    answered = http_answer if protocol == "http" else grpc_answer
    request_of = http_request if protocol == "http" else grpc_request
    with serving(tmp_path, engine, protocol) as endpoint:
        target = target_of(endpoint, engine, protocol)
        info = read_model_info(target)
        shapes = {tensor.name: (9,) for tensor in info.inputs if tensor.shape.count(-1) > 1}
        pool = request_tensors(info, Payload(shapes=shapes, batch_size=2))[:5]
        answers = []
        with shared_inputs(target, [raw_inputs(info, tensors) for tensors in pool]) as shared:
            assert len(regions(endpoint)) == 1  # the server's, and no file that could be left behind
            for tensors, places in zip(pool, shared, strict=True):
                sent, there = request_of(target, info, tensors), request_of(target, info, tensors, places)
                assert len(there) < 1000
                answers.append(answered(target, there))
                assert answers[-1] == answered(target, sent)
        assert len(set(answers)) > 1
        wait_until(lambda: regions(endpoint) == [])  # the server may not be done with the last request


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_load_leaves_no_memory_behind(tmp_path: Path, protocol: str) -> None:
    engine = cnn_engine(tmp_path)
    with serving(tmp_path, engine, protocol) as endpoint, LoadGenerator(processes=2) as generator:
        target = target_of(endpoint, engine, protocol)
        plan = LoadPlan(rate_per_s=100, duration_s=1, seed=1, timeout_s=60)
        sent, shared = (generator.run(target, plan, payload=payload) for payload in (Payload(), SHARED_PAYLOAD))
        assert len(shared.log) == len(sent.log) > 50
        assert not shared.log.failed.any()
        wait_until(lambda: regions(endpoint) == [])  # the server may not be done with the last request
        users = ClosedLoopPlan(concurrency=2, duration_s=0.5, timeout_s=60)
        closed = generator.run(target, users, payload=SHARED_PAYLOAD)
        assert not closed.log.failed.any()


def test_memory_that_runs_out_is_an_error_that_leaves_nothing_behind(tmp_path: Path) -> None:
    engine = cnn_engine(tmp_path)
    with serving(tmp_path, engine) as endpoint:
        target = target_of(endpoint, engine)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
        try:
            with (
                pytest.raises(PayloadError, match="The 2,000,000 bytes of the inputs") as caught,
                shared_inputs(target, [{"image": bytes(2_000_000)}]),
            ):
                pass
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert str(caught.value).endswith("larger, or leave --shared-memory out.")
        assert regions(endpoint) == []


def test_a_server_that_does_not_see_the_memory_says_so(tmp_path: Path) -> None:
    engine = cnn_engine(tmp_path)
    with serving(tmp_path, engine) as endpoint, LoadGenerator() as generator:
        nowhere = Target(url=f"{endpoint.url('http')}/elsewhere", model_name=engine.model_name)
        with (
            pytest.raises(TargetRefused, match=r"does not take shared memory.*\n.*docker run --ipc host"),
            shared_inputs(nowhere, [{"image": bytes(8)}]),
        ):
            pass
        with pytest.raises(TargetRefused):
            generator.run(nowhere, LoadPlan(rate_per_s=5, duration_s=1, seed=1), payload=SHARED_PAYLOAD)
    assert files_left() == []


def test_memory_is_not_shared_with_another_machine() -> None:
    target = Target(url="http://192.0.2.1:8000", model_name="model")
    with (
        pytest.raises(PayloadError, match=r"192\.0\.2\.1 is not this machine"),
        shared_inputs(target, [{"image": np.zeros(4, np.float32).tobytes()}]),
    ):
        pass
