"""Service times on the real embedded server."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from engines import cnn_engine, doubler_engine, token_engine

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from lib.sleeping_model import Law, sleeping_engine

from loadgen.sending.generator import LoadGenerator
from loadgen.spec.plan import LoadPlan, Payload, SharedMemory
from loadgen.spec.target import Target
from loadgen.traffic.samples import shapes_in_file
from model_repo.repository.write import RUNTIME
from model_repo.server.options import ServerOptions
from model_repo.server.triton import serve
from model_repo.spec import Protocol, ServingConfig
from search.records.slo import WorkloadRecord
from search.simulator.service_times import ClosedLoop, measure_curve
from search.trials.bench import BenchFailed
from search.trials.triton_bench import TritonBench
from search.workload import Workload, request_shapes

pytestmark = pytest.mark.system


@pytest.mark.measure
def test_a_model_is_profiled_in_a_few_seconds_and_its_times_are_those_of_its_law(tmp_path: Path) -> None:
    """It sleeps: a busy machine makes it slower and never faster, and its law leaves room for that."""
    law = Law(5e-3, 0.5e-3)
    config = ServingConfig(engine=sleeping_engine(tmp_path / "model", law), max_batch_size=16)
    with serve(ServerOptions(run_dir=tmp_path)) as server, LoadGenerator() as generator:
        bench = TritonBench(server, generator, payload=Payload(), limit_ms=50.0, timeout_s=5.0)
        bench.load(config)
        curve = measure_curve(bench.saturate, instances=1, max_batch_size=16, limit_s=0.05, seed=0)
    assert 1.0 <= curve.sizes[0] < 1.5
    assert 8 < curve.sizes[-1] <= 16
    assert list(curve.seconds) == sorted(curve.seconds)
    for size, seconds in zip(curve.sizes, curve.seconds, strict=True):
        assert law.seconds(size, 1) <= seconds < 3 * law.seconds(size, 1), size  # type: ignore[arg-type]
    # A batch is worth it: sixteen at once take less than one after the other, by the law a sixth.
    assert float(curve.at(np.array([16.0]))[0]) < 16 * curve.seconds[0]
    assert 0 < curve.overhead_s < 0.05
    assert curve.handover_s is not None
    assert bench.spent.load_s < 20
    assert bench.spent.contention.watched_s > 0.5 * bench.spent.load_s


@pytest.mark.measure
def test_requests_of_one_length_are_batched_and_their_neighbours_of_another_are_not(tmp_path: Path) -> None:
    lengths = tmp_path / "lengths.txt"
    lengths.write_text("8\n2000\n" * 3)
    shapes = request_shapes(shapes_in_file(lengths))
    assert shapes is not None
    config = ServingConfig(engine=token_engine(tmp_path), max_batch_size=8, intra_op_threads=1)
    with serve(ServerOptions(run_dir=tmp_path)) as server, LoadGenerator() as generator:
        payload, workload = Payload(data_file=lengths), Workload(shapes=shapes)
        bench = TritonBench(server, generator, payload=payload, limit_ms=50.0, timeout_s=5.0, workload=workload)
        bench.load(config)
        short, long, mixed = (bench.saturate(8, 0.5, 1, shape) for shape in (0, 1, None))
        bench.measure(20.0, 0.5, seed=1)
    assert mean_batch(short) > 2
    assert mean_batch(long) > 2
    assert mean_batch(mixed) < 2
    assert mean_execution_ms(long) > mean_execution_ms(short)
    assert bench.last_measurement().failures == 0


def test_load_goes_over_the_protocol_of_the_demand(tmp_path: Path) -> None:
    config = ServingConfig(engine=cnn_engine(tmp_path), max_batch_size=4, intra_op_threads=1)
    workload = Workload(record=WorkloadRecord(protocol="grpc"))

    def failures(*arguments: str) -> int:
        options = ServerOptions(run_dir=tmp_path, protocol="grpc", extra_arguments=arguments)
        with serve(options) as server, LoadGenerator() as generator:
            bench = TritonBench(
                server, generator, payload=Payload(), limit_ms=50.0, timeout_s=60.0, workload=workload
            )
            bench.load(config)
            return int(bench.saturate(4, 0.5, seed=1).log.failed.sum())

    assert failures() == 0
    with pytest.raises(BenchFailed):
        failures("--allow-grpc=false")


COLD_MODEL = """
import importlib.util
import time

import triton_python_backend_utils as pb_utils

spec = importlib.util.spec_from_file_location("onnx_runtime", {runtime!r})
onnx_runtime = importlib.util.module_from_spec(spec)
spec.loader.exec_module(onnx_runtime)


class TritonPythonModel(onnx_runtime.TritonPythonModel):
    known = set()

    def execute(self, requests):
        size = len(requests)
        time.sleep(0.01 if size in self.known else 0.4)
        self.known.add(size)
        return super().execute(requests)
"""


def test_a_run_that_met_batch_sizes_for_the_first_time_names_them_and_is_measured_again(tmp_path: Path) -> None:
    """The first batch of so many requests takes 0.4 s, as cuDNN's search may."""
    code = tmp_path / "model.py"
    code.write_text(COLD_MODEL.format(runtime=str(RUNTIME / "onnx_runtime.py")))
    config = ServingConfig(engine=replace(cnn_engine(tmp_path / "engine"), code=code), max_batch_size=8)
    with serve(ServerOptions(run_dir=tmp_path)) as server, LoadGenerator() as generator:
        bench = TritonBench(server, generator, payload=Payload(), limit_ms=50.0, timeout_s=20.0)
        bench.load(config)
        endpoint = server.endpoint
        seen = generator.run(
            Target(
                url=endpoint.url("http"), model_name=config.engine.model_name, headers=endpoint.headers("http")
            ),
            LoadPlan(rate_per_s=300.0, duration_s=1.0, seed=1, timeout_s=20.0),
            payload=Payload(),
        ).measurement
        assert seen.server.cold_sizes
        assert {3, 5, 6, 7}.issuperset(seen.server.cold_sizes)
        assert any("model_warmup" in remark for remark in seen.remarks)
        bench.restart()
        bench.measure(300.0, 1.0, seed=1)
        assert bench.spent.load_s > 2.0
        last = bench.last_measurement()
        assert last.failures == 0


MIXING_MODEL = """
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        rows = [pb_utils.get_input_tensor_by_name(one, "x").as_numpy() for one in requests]
        time.sleep(0.005)
        if sum(map(len, rows)) > 4:
            rows = rows[1:] + rows[:1]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("doubled", 2 * one)]) for one in rows]
"""


@pytest.mark.parametrize(("protocol", "memory"), [("http", "none"), ("grpc", "system")])
def test_answers_under_load_are_compared_with_those_alone(
    tmp_path: Path, protocol: Protocol, memory: SharedMemory
) -> None:
    """In batches of over 4 rows, which take 5 ms each, a request gets the answer to another one."""
    code = tmp_path / "model.py"
    code.write_text(MIXING_MODEL)
    engine = replace(doubler_engine(tmp_path / "engine"), code=code)
    workload, payload = Workload(record=WorkloadRecord(protocol=protocol)), Payload(shared_memory=memory)
    options = ServerOptions(run_dir=tmp_path, protocol=protocol, shared_memory=memory != "none")
    with serve(options) as server, LoadGenerator() as generator:
        bench = TritonBench(server, generator, payload=payload, limit_ms=50.0, timeout_s=20.0, workload=workload)
        bench.load(ServingConfig(engine=engine, max_batch_size=16))
        mixed = bench.compare_answers(60.0)
        bench.load(ServingConfig(engine=engine, max_batch_size=4))
        right = bench.compare_answers(60.0)
        bench.load(ServingConfig(engine=engine, max_batch_size=1, dynamic_batching=False))
        single = bench.compare_answers(60.0)
    assert (mixed.mixed, mixed.unseen, mixed.failed) == (True, "", 0)
    assert 4 < mixed.mean_batch_size <= 16
    assert (right.mixed, right.unseen, right.differing, right.failed) == (False, "", 0, 0)
    assert 1 < right.mean_batch_size <= 4
    assert (single.mixed, single.compared) == (False, 0)
    assert single.unseen
    assert bench.spent.load_s > 4.0  # two loads of 2 s


def mean_batch(loop: ClosedLoop) -> float:
    executions = sum(row.executions for row in loop.batches)
    return sum(row.batch_size * row.executions for row in loop.batches) / executions


def mean_execution_ms(loop: ClosedLoop) -> float:
    executions = sum(row.executions for row in loop.batches)
    return sum(row.infer_ms * row.executions for row in loop.batches) / executions
