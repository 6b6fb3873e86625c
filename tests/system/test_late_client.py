"""A client that sends late, on the real embedded server."""

from dataclasses import replace
from pathlib import Path

import pytest
from engines import cnn_engine

from loadgen.sending.generator import LoadGenerator
from loadgen.spec.limits import LatencyLimit
from loadgen.spec.plan import Payload
from loadgen.statistics.probe import evaluate_probe
from model_repo.server.options import ServerOptions
from model_repo.server.triton import serve
from model_repo.spec import ServingConfig
from search.trials.triton_bench import TritonBench

pytestmark = pytest.mark.system


def test_what_met_the_limit_counts_although_it_left_late(tmp_path: Path) -> None:
    nothing_is_so_punctual_ms = 1e-6
    limit = LatencyLimit(limit_ms=500.0)
    with serve(ServerOptions(run_dir=tmp_path)) as server, LoadGenerator() as generator:
        bench = TritonBench(
            server,
            generator,
            payload=Payload(),
            limit_ms=limit.limit_ms,
            timeout_s=60.0,
            most_send_lag_ms=nothing_is_so_punctual_ms,
        )
        bench.load(ServingConfig(engine=cnn_engine(tmp_path), max_batch_size=4, intra_op_threads=1))
        probe = bench.measure(200.0, 6.0, 0)
    assert probe.problems[0].startswith("requests left late")
    assert probe.only_slower
    seen = evaluate_probe(probe, 200.0, (limit,))
    assert seen.met
    assert not seen.problems
    assert evaluate_probe(replace(probe, only_slower=False), 100.0, (limit,)).problems
