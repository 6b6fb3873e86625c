"""Who has no secret decides nothing in a load test of several machines, and learns nothing from it."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgpack
import pytest
import zmq
from clusters import master_command, wait_until_listening, worker_command
from fake_triton import fake_triton
from machine import free_port
from zmq.utils import z85

from loadgen.distributed.secret import VARIABLE, keys_from_secret
from loadgen.records.record import LoadTestRecord

pytestmark = [pytest.mark.system, pytest.mark.long]

TOKEN = "bearer-of-the-staging-server"
OURS, OTHERS = "a secret of sixteen or more", "another secret of that length"


@pytest.fixture(autouse=True)
def a_user_without_a_secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@contextmanager
def running(command: list[str], **variables: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **variables},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def stranger(context: zmq.Context[zmq.Socket[bytes]], port: int, secret: str | None) -> zmq.Socket[bytes]:
    """Locust's own worker of another user: without keys, or with the keys of another secret."""
    end = context.socket(zmq.DEALER)
    end.setsockopt(zmq.IDENTITY, b"stranger")
    end.setsockopt(zmq.LINGER, 0)
    if secret is not None:
        master, worker = keys_from_secret(secret.encode())
        end.setsockopt(zmq.CURVE_SECRETKEY, z85.encode(worker))
        end.setsockopt(zmq.CURVE_PUBLICKEY, zmq.curve_public(z85.encode(worker)))
        end.setsockopt(zmq.CURVE_SERVERKEY, zmq.curve_public(z85.encode(master)))
    end.connect(f"tcp://127.0.0.1:{port}")
    heartbeat = {"state": "ready", "current_cpu_usage": 0.0, "current_memory_usage": 0}
    for kind, data in (("client_ready", "2.47.0"), ("heartbeat", heartbeat)):
        end.send(msgpack.dumps((kind, data, "stranger")))
    return end


def test_a_strangers_worker_is_not_counted_and_hears_nothing() -> None:
    port = free_port()
    options = ("--rate", "100", "--duration", "3s", "--warmup", "0s")
    with (
        fake_triton("--delay-ms", "2") as server,
        running(master_command(server.url, port, *options, workers=1)) as master,
        zmq.Context() as context,
    ):
        wait_until_listening(port)
        with stranger(context, port, None) as plain, stranger(context, port, OTHERS) as wrong:
            assert not plain.poll(3000)  # the old master answered at once
            with running(worker_command(port)) as worker:
                out, err = master.communicate(timeout=240)
                assert worker.wait(timeout=240) == 0
            assert not plain.poll(0)
            assert not wrong.poll(0)
    assert out, err
    record = LoadTestRecord.model_validate_json(out)
    assert record.measurement is not None, err
    assert record.measurement.requests > 200
    assert record.measurement.failures == 0


GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)  # of ZMTP 3.1


@pytest.mark.parametrize("kind", [b"\x06", b"\x02"], ids=["command", "message"])
def test_a_stranger_cannot_make_the_master_take_much(kind: bytes) -> None:
    port, size, taken, block = free_port(), 250_000_000, 0, bytes(1_000_000)
    with running(master_command("http://127.0.0.1:9", port, "--rate", "1")):
        wait_until_listening(port)
        with socket.create_connection(("127.0.0.1", port)) as stranger, suppress(ConnectionError):
            stranger.sendall(GREETING)
            stranger.recv(len(GREETING), socket.MSG_WAITALL)
            stranger.sendall(kind + size.to_bytes(8))
            while taken < size:
                stranger.sendall(block)
                taken += len(block)
    assert taken < size / 4  # what the kernel keeps


@pytest.mark.parametrize("secret", [None, OTHERS])
def test_a_false_master_hears_nothing_and_the_worker_says_why_it_leaves(secret: str | None) -> None:
    options = ("http://127.0.0.1:9", "--header-env", "Authorization=TOKEN")
    with zmq.Context() as context, context.socket(zmq.ROUTER) as false_master:
        false_master.setsockopt(zmq.LINGER, 0)
        if secret is not None:
            key = z85.encode(keys_from_secret(secret.encode())[0])
            false_master.setsockopt(zmq.CURVE_SERVER, 1)
            false_master.setsockopt(zmq.CURVE_SECRETKEY, key)
        port = false_master.bind_to_random_port("tcp://127.0.0.1")
        with running(worker_command(port, *options), TOKEN=TOKEN, **{VARIABLE: OURS}) as worker:
            _, err = worker.communicate(timeout=240)  # Locust asks for five minutes
        assert not false_master.poll(0)
    assert worker.returncode == 2
    assert len(err.splitlines()) == 2, err
    assert VARIABLE in err
    assert TOKEN not in err
    assert OURS not in err


def test_headers_go_only_to_the_server_that_the_worker_was_started_for() -> None:
    port = free_port()
    master = master_command("http://127.0.0.1:9", port, "--rate", "1", "--header-env", "Authorization=TOKEN")
    with fake_triton() as server:
        worker = worker_command(port, server.url, "--header-env", "Authorization=TOKEN")
        with running([*master, "--expect-workers", "1"], TOKEN=TOKEN) as asking, running(worker, TOKEN=TOKEN):
            _, err = asking.communicate(timeout=240)
    assert asking.returncode == 2
    assert "was started for" in err
    assert TOKEN not in err


@pytest.mark.parametrize(
    "options",
    [
        ("http://127.0.0.1:9", "--model", "m", "--rate", "1", "--master", "--bind", "0.0.0.0"),  # noqa: S104
        ("http://127.0.0.1:9", "--model", "m", "--rate", "1", "--master", "--bind", "*"),
        ("--worker", "192.0.2.1"),
    ],
)
@pytest.mark.parametrize("secret", ["", "short"])
def test_an_address_that_others_can_reach_needs_a_secret(options: tuple[str, ...], secret: str) -> None:
    from clusters import LOADTEST

    with running([*LOADTEST, *options], **{VARIABLE: secret}) as process:
        _, err = process.communicate(timeout=240)
    assert process.returncode == 2
    assert len(err.splitlines()) == 2, err
    assert VARIABLE in err


def test_the_master_listens_on_the_loopback_address_alone() -> None:
    port = free_port()
    with running(master_command("http://127.0.0.1:9", port, "--rate", "1")):
        wait_until_listening(port)
        with socket.socket() as other:
            other.bind(("127.0.0.2", port))  # refused beside a socket that listens everywhere


TAMPERED = """
import sys
from loadgen.distributed.master import DistributedGenerator
from loadgen.errors import WorkerDied
from loadgen.spec.plan import LoadPlan
from loadgen.spec.target import Target

with DistributedGenerator(host="127.0.0.1", port=int(sys.argv[1]), workers=1) as several:
    several.wait_for_workers(lambda: False)
    try:
        several.run(Target(url="http://127.0.0.1:9", model_name="m"), LoadPlan(rate_per_s=1, duration_s=1, seed=0))
    except WorkerDied as error:
        print(error)
"""

LIAR = """
import os, sys
from loadgen.distributed import launch, worker
from loadgen.distributed.secret import cluster_secret
from loadgen.spec.target import WorkerRights

worker.Worker._report = lambda self, data: self.send_message("tritune", '{"number": 1, "more": 1}')
rights = WorkerRights(secret=cluster_secret("127.0.0.1", os.environ))
launch.work_on_all("127.0.0.1", int(sys.argv[1]), rights, processes=1)
"""


def test_a_message_that_does_not_fit_is_refused_with_the_name_of_its_sender() -> None:
    port = free_port()
    with running([sys.executable, "-c", TAMPERED, str(port)]) as master:
        wait_until_listening(port)
        with running([sys.executable, "-c", LIAR, str(port)]):
            out, err = master.communicate(timeout=240)
    assert master.returncode == 0, err
    assert "more" in out
    assert "the worker" in out
    assert "same version" in out.splitlines()[1]
