"""`optimize worker` with a real Triton and a real PostgreSQL: it joins, measures, and leaves no password."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from onnx_models import small_cnn
from postgresql import PASSWORD, postgresql
from shared_studies import task

from loadgen.spec.limits import LatencyLimit
from optimizer.config import OptimizeConfig
from optimizer.machine.hardware import hardware_label
from optimizer.run.prepare import prepare, read_inputs
from optimizer.run.workers import COMMAND, job_of
from search.space import default_config, knobs_of
from search.study.pool import open_pool
from search.study.store import open_store

pytestmark = [pytest.mark.system, pytest.mark.long]
pytest.importorskip("psycopg", reason="the extra `postgresql` is not installed")


def test_a_worker_measures_what_is_queued_and_leaves_when_the_search_is_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, theirs = tmp_path / "run", tmp_path / "worker"
    run.mkdir()
    config = OptimizeConfig(
        limits=(LatencyLimit(limit_ms=200.0, quantile=0.9),),
        model=small_cnn(tmp_path / "m.onnx"),
        most_send_lag_ms=1e3,
        output=run,
    )
    prepared = prepare(config, read_inputs(config, work_dir=run / "model"))
    machine = hardware_label(prepared.machine)
    with postgresql() as cluster:
        environment = {**os.environ, "TRITUNE_STORAGE": cluster.url, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [*COMMAND, "--study", "m", "--model", str(config.model), "--output", str(theirs), "--idle", "5m"]
        with (tmp_path / "worker.out").open("w") as out:
            process = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
        try:
            store = open_store(prepared.space, run, storage=cluster.url, seed=0, study="m", hardware=machine)
            pool = open_pool(store)
            pool.publish(job_of(config, prepared).model_dump(mode="json"))
            knobs = knobs_of(default_config(prepared.engines[0]))
            pool.offer(knobs, task(budget_s=60.0))
            while not (found := pool.gather()):
                assert process.poll() is None, (tmp_path / "worker.out").read_text()
                assert not caplog.records, caplog.text  # a trial that is not used would never come
                time.sleep(0.5)
            pool.close()
            assert process.wait(timeout=240) == 0
            store.storage.close()
        finally:
            process.kill()
            process.wait()
    [trial] = found
    assert (trial.hardware, knobs_of(trial.served)) == (machine, knobs)
    assert trial.state in ("complete", "infeasible")  # a machine that stands still keeps no limit
    assert trial.measurement is not None
    written = [path for path in (*run.rglob("*"), *theirs.rglob("*"), tmp_path / "worker.out") if path.is_file()]
    assert not [path for path in written if PASSWORD.encode() in path.read_bytes()]
