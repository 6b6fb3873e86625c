"""Our own Triton backend inside a real Triton, with a runner whose GPU is made of ordinary memory."""

import shutil
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import fake_cuda
import numpy as np
import psutil
import pytest
from engines import parameters, plain_engine
from infer import InferenceRefused, get, infer
from waiting import wait_until

from model_repo.errors import RequestRefused
from model_repo.repository.write import write_repository
from model_repo.server.control import load_model, unload_model
from model_repo.server.hosts import serve_repository
from model_repo.server.options import ServerOptions
from model_repo.server.triton import Server, serve
from model_repo.spec import Endpoint, ServingConfig, TensorSpec

pytestmark = pytest.mark.system

FAKE_DRIVER = """
import threading

import fake_cuda

# Of the whole process, as streams, graphs and memory of the real one are; a capture is of one thread.
GPU = fake_cuda.FakeCuda()
CAPTURED = threading.local()


class DriverCuda(fake_cuda.FakeCuda):
    copied_from = {}

    def __init__(self, device=0):
        self.calls, self.registered, self.memory = [], [], []
        self._registers, self._graphs = True, GPU._graphs

    @property
    def _recording(self):
        return getattr(CAPTURED, "work", None)

    @_recording.setter
    def _recording(self, work):
        CAPTURED.work = work

    def copy_in(self, device, host, size_bytes, stream):
        self.copied_from[device] = host, size_bytes
        super().copy_in(device, host, size_bytes, stream)
"""
FAKE_ENGINE = """
import ctypes
import os
import time

import fake_cuda
import numpy as np

POISON, DEATH = 666.0, 999.0


class TensorRtEngine(fake_cuda.DoublingEngine):
    def __init__(self, file, cuda, **options):
        if file.read_bytes() == b"damaged":
            raise RuntimeError("model.plan is damaged")
        super().__init__(cuda)
        self.file = file

    def bind(self, shapes, addresses):
        return Bound(super().bind(shapes, addresses), shapes["x"], addresses["x"], self.cuda)


class Bound:
    def __init__(self, bound, shape, address, cuda):
        self._bound, self._cuda, self._address = bound, cuda, address
        self._x = fake_cuda._at(address, shape)
        self.output_shapes = bound.output_shapes
        self.put_outputs = bound.put_outputs

    def enqueue(self, stream):
        self._bound.enqueue(stream)
        if (self._x == DEATH).any():
            os._exit(3)
        if (self._x == POISON).any():
            ctypes.memset(self._cuda.copied_from[self._address][0], 0, self._cuda.copied_from[self._address][1])
            raise RuntimeError("cuMemAlloc failed: CUDA_ERROR_OUT_OF_MEMORY: out of memory")
"""
"""The engine doubles. It has no memory for one value, of which nothing stays for the padding of later batches, and
another value kills it."""

POISON, DEATH = 666.0, 999.0


def write_model(
    repository: Path, *, model_name: str = "m", instances: int = 2, plan: bytes = b"plan", **options: str
) -> None:
    """Write a model whose runner has a fake GPU and a fake engine."""
    x = TensorSpec(name="x", datatype="FP32", shape=(-1,), sample_shape=(4,))
    outputs = (
        TensorSpec(name="y", datatype="FP32", shape=(-1,)),
        TensorSpec(name="sums", datatype="FP32", shape=()),
    )
    file = repository.parent / "model.plan"
    file.unlink(missing_ok=True)
    file.write_bytes(plan)
    engine = plain_engine(
        backend="tensorrt_rtx", device="gpu", model_file="model.plan", files=(("model.plan", file),),
        inputs=(x,), outputs=outputs, model_name=model_name,
    )  # fmt: skip
    config = ServingConfig(engine=engine, max_batch_size=8, max_queue_delay_us=20_000, instance_count=instances)
    model = write_repository(repository, config, runtime="slots")
    helpers = model / "1" / "tritune_gpu"
    (helpers / "driver.py").write_text((helpers / "driver.py").read_text() + FAKE_DRIVER)
    (helpers / "tensorrt_engine.py").write_text(FAKE_ENGINE)
    shutil.rmtree(helpers / "__pycache__")
    text = Path(fake_cuda.__file__).read_text().replace("model_repo.runtime.", "")
    (helpers.parent / "fake_cuda.py").write_text(text)
    pbtxt = model / "config.pbtxt"
    pbtxt.write_text(pbtxt.read_text().replace("KIND_GPU", "KIND_CPU") + parameters(**options))


@contextmanager
def serving(folder: Path, **options: Any) -> Iterator[Server]:
    with serve(ServerOptions(run_dir=folder, runtime="slots")) as server:
        write_model(server.repository, **options)
        load_model(server.endpoint, "m", timeout_s=60.0)
        yield server


def runners() -> list[psutil.Process]:
    """The runner processes of servers of this process."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if "slots_model.py" in " ".join(process.cmdline()):
                found.append(process)
    return found


def check(endpoint: Endpoint, x: Any, model_name: str = "m") -> None:
    answer = infer(endpoint, model_name, {"x": x})
    np.testing.assert_allclose(answer["y"], 2 * x, rtol=1e-5)
    np.testing.assert_allclose(answer["sums"].ravel(), x.sum(axis=1), rtol=1e-3, atol=1e-3)


def stats_of(endpoint: Endpoint) -> dict[str, Any]:
    (stats,) = get(endpoint, "/v2/models/m/stats")["model_stats"]
    return stats


def requests_of(count: int, width: int = 500) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((1 + number % 3, width)).astype(np.float32) for number in range(count)]


@pytest.mark.parametrize("graphs", ["0", "1"])
def test_batches_of_requests_get_their_own_answers_and_are_counted(tmp_path: Path, graphs: str) -> None:
    with serving(tmp_path, cuda_graphs=graphs) as server:
        before = stats_of(server.endpoint)  # of the warm-up
        with ThreadPoolExecutor(12) as pool:
            list(pool.map(lambda x: check(server.endpoint, x), requests_of(24)))
        with pytest.raises(InferenceRefused):
            infer(server.endpoint, "m", {"x": np.zeros((9, 4), np.float32)})
        stats = stats_of(server.endpoint)
        succeeded, succeeded_before = (each["inference_stats"]["success"]["count"] for each in (stats, before))
        assert succeeded - succeeded_before == 24
        batches = stats["batch_stats"]
        assert sum(batch["compute_infer"]["count"] for batch in batches) == stats["execution_count"]
        assert all(batch[stage]["ns"] > 0 for batch in batches for stage in ("compute_infer", "compute_output"))
        assert len(runners()) == 1, "one process, whatever the number of instances"


def test_a_finished_repository_brings_the_backend_along(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    write_model(repository)
    with serve_repository(repository, ServerOptions(run_dir=tmp_path)) as standing:
        check(standing.endpoint, requests_of(1)[0])
        assert len(runners()) == 1
    assert not runners()


def test_batches_of_megabytes_arrive_bit_for_bit(tmp_path: Path) -> None:
    requests = requests_of(8, 100_003)
    requests.append(np.concatenate(requests[:4]))  # 7 rows, 2.8 MB in any case
    with serving(tmp_path) as server, ThreadPoolExecutor(9) as pool:
        answers = list(pool.map(lambda x: infer(server.endpoint, "m", {"x": x})["y"], requests))
    for x, y in zip(requests, answers, strict=True):
        np.testing.assert_array_equal(y, 2 * x)


def test_an_error_reaches_the_request_that_caused_it_and_no_other(tmp_path: Path) -> None:
    with serving(tmp_path, instances=1) as server:
        requests = requests_of(8)
        requests[3][0, 0] = POISON
        with ThreadPoolExecutor(8) as pool:
            futures = [pool.submit(check, server.endpoint, x) for x in requests]
        failures = {number: future.exception() for number, future in enumerate(futures) if future.exception()}
        assert list(failures) == [3]
        assert isinstance(failures[3], InferenceRefused)
        assert "CUDA_ERROR_OUT_OF_MEMORY" in str(failures[3])


@pytest.mark.parametrize("how", ["killed", "dies"])
def test_a_runner_that_ends_is_started_again(tmp_path: Path, how: str) -> None:
    with serving(tmp_path) as server:
        (runner,) = runners()
        if how == "killed":
            runner.kill()
            wait_until(lambda: not runners())
        else:
            with pytest.raises(InferenceRefused, match="has ended while it executed a batch"):
                infer(server.endpoint, "m", {"x": np.full((1, 4), DEATH, np.float32)})
        time.sleep(1.1)  # it is not started twice within a second
        for x in requests_of(4):  # each slot may notice it only now
            with suppress(InferenceRefused):
                check(server.endpoint, x)
        check(server.endpoint, requests_of(1)[0])
        (other,) = runners()
        assert other.pid != runner.pid


def test_a_runner_that_hangs_is_killed(tmp_path: Path) -> None:
    with serving(tmp_path, instances=1, patience_s="5") as server:
        (runner,) = runners()
        runner.send_signal(signal.SIGSTOP)
        started = time.monotonic()
        with pytest.raises(InferenceRefused, match="does not answer, and was killed"):
            check(server.endpoint, requests_of(1)[0])
        assert time.monotonic() - started > 4.9
        check(server.endpoint, requests_of(1)[0])
        assert [other.pid for other in runners()] != [runner.pid]


def test_a_model_that_does_not_load_says_why(tmp_path: Path) -> None:
    with serve(ServerOptions(run_dir=tmp_path, runtime="slots")) as server:
        write_model(server.repository, plan=b"damaged")
        with pytest.raises(RequestRefused, match=r"model\.plan is damaged"):
            load_model(server.endpoint, "m", timeout_s=60.0)
        assert not runners()


def test_two_models_have_a_runner_each_and_unloading_one_leaves_the_other(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        write_model(server.repository, model_name="n")
        load_model(server.endpoint, "n", timeout_s=60.0)
        assert len(runners()) == 2
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda n: check(server.endpoint, requests_of(8)[n % 8], "mn"[n % 2]), range(24)))
        unload_model(server.endpoint, "n")
        wait_until(lambda: len(runners()) == 1)
        check(server.endpoint, requests_of(1)[0])


def test_unloading_under_load_ends_the_process_and_leaves_nothing(tmp_path: Path) -> None:
    before = {path.name for path in Path("/dev/shm").iterdir()}
    with serving(tmp_path) as server:
        answered, refused = [0], [0]
        over = threading.Event()

        def load() -> None:
            while not over.is_set():
                try:
                    check(server.endpoint, requests_of(1)[0])
                    answered[0] += 1
                except InferenceRefused:
                    refused[0] += 1

        threads = [threading.Thread(target=load, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        wait_until(lambda: answered[0] > 0)
        memory = [
            line for line in Path(f"/proc/{runners()[0].pid}/maps").read_text().splitlines() if "tritune" in line
        ]
        unload_model(server.endpoint, "m")
        wait_until(lambda: not runners() and refused[0] > 0)
        over.set()
        for thread in threads:
            thread.join()
        assert server.alive()
        slots = [line for line in memory if "memfd:tritune-slot" in line]
        assert slots
        assert not [line for line in memory if "/dev/shm" in line], "a slot has no name that others could remove"
        load_model(server.endpoint, "m", timeout_s=60.0)
        check(server.endpoint, requests_of(1)[0])
    after = {path.name for path in Path("/dev/shm").iterdir()}
    assert not [name for name in after - before if "slot" in name]
    assert not runners()


def test_instances_are_added_and_removed_in_place(tmp_path: Path) -> None:
    with serving(tmp_path, instances=1) as server:
        (runner,) = runners()
        pbtxt = server.repository / "m" / "config.pbtxt"
        for count in (3, 1):
            pbtxt.write_text(re_count(pbtxt.read_text(), count))
            load_model(server.endpoint, "m", timeout_s=60.0)
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(lambda x: check(server.endpoint, x), requests_of(12)))
            assert [each.pid for each in runners()] == [runner.pid]
            wait_until(lambda count=count: runner.num_threads() <= count + 1)  # type: ignore[misc]


def re_count(text: str, count: int) -> str:
    import re

    return re.sub(r"count: \d+", f"count: {count}", text)
