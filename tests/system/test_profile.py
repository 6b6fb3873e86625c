"""Service times on the real embedded server."""

import sys
from pathlib import Path

import numpy as np
import pytest
from engines import cnn_engine, token_engine

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from lib.sleeping_model import Law, sleeping_engine

from loadgen.sending.generator import LoadGenerator
from loadgen.spec.plan import Payload
from loadgen.traffic.samples import shapes_in_file
from model_repo.server.options import ServerOptions
from model_repo.server.triton import serve
from model_repo.spec import ServingConfig
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


def mean_batch(loop: ClosedLoop) -> float:
    executions = sum(row.executions for row in loop.batches)
    return sum(row.batch_size * row.executions for row in loop.batches) / executions


def mean_execution_ms(loop: ClosedLoop) -> float:
    executions = sum(row.executions for row in loop.batches)
    return sum(row.infer_ms * row.executions for row in loop.batches) / executions
