"""A client that sends late, on the real embedded server."""

from pathlib import Path

import pytest
from engines import cnn_engine

from loadgen.sending.generator import LoadGenerator
from loadgen.spec.plan import Payload
from model_repo.server.options import ServerOptions
from model_repo.server.triton import serve
from model_repo.spec import ServingConfig
from search.trials.triton_bench import TritonBench

pytestmark = pytest.mark.system


def test_a_run_of_a_late_client_does_not_go_on_to_its_end(tmp_path: Path) -> None:
    nothing_is_so_punctual_ms = 1e-6
    with serve(ServerOptions(run_dir=tmp_path)) as server, LoadGenerator() as generator:
        bench = TritonBench(
            server,
            generator,
            payload=Payload(),
            limit_ms=50.0,
            timeout_s=60.0,
            most_send_lag_ms=nothing_is_so_punctual_ms,
        )
        bench.load(ServingConfig(engine=cnn_engine(tmp_path), max_batch_size=4, intra_op_threads=1))
        probe = bench.measure(100.0, 60.0, 0)
    assert probe.problems
    assert probe.problems[0].startswith("requests left late")
    assert probe.log.scheduled_ns[-1] < 50e9
