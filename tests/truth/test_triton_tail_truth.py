"""A p99 that `loadtest` certifies on a real Triton, against that Triton's own clock."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from clusters import LOADTEST
from disturbance import Watch
from numpy.typing import NDArray
from tails import ServersView, Taken, assert_no_tail_of_its_own

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from lib.sleeping_model import MODEL, Law, sleeping_engine

from loadgen.records.record import LoadTestRecord
from loadgen.spec.plan import LoadPlan
from loadgen.traffic.arrivals import schedule
from model_repo.server.options import ServerOptions
from model_repo.server.triton import serve
from model_repo.spec import ServingConfig

pytestmark = [pytest.mark.system, pytest.mark.measure]

SLEEP_MS = 4.0
LIMIT_MS = 60.0
PLAN = LoadPlan(rate_per_s=60, duration_s=12.0, seed=9)


def traced(file: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How long Triton kept each inference that came over HTTP, and when it came, as it traced them itself."""
    times: dict[int, dict[str, int]] = {}
    for entry in json.loads(file.read_text()):
        for stamp in entry.get("timestamps", ()):
            times.setdefault(entry["id"], {})[stamp["name"]] = stamp["ns"]
    over_http = [stamps for stamps in times.values() if "HTTP_RECV_START" in stamps]
    arrived_ns = np.array([stamps["HTTP_RECV_START"] for stamps in over_http])
    ended_ns = np.array([stamps["HTTP_SEND_END"] for stamps in over_http])
    order = np.argsort(arrived_ns)
    return (ended_ns - arrived_ns)[order], arrived_ns[order]


def test_a_p99_that_is_certified_on_a_real_triton_is_the_p99_of_its_own_clock(tmp_path: Path) -> None:
    engine = sleeping_engine(tmp_path / "model", Law(SLEEP_MS / 1e3, 0.0))
    due_ns = schedule(PLAN)

    def take() -> Taken:
        run_dir = Path(tempfile.mkdtemp(dir=tmp_path))
        trace = run_dir / "trace.json"
        options = ServerOptions(
            run_dir=run_dir,
            exit_grace_s=30.0,  # it writes the trace when it ends
            extra_arguments=(
                *("--trace-config", f"triton,file={trace}"),
                *("--trace-config", "level=TIMESTAMPS"),
                *("--trace-config", "rate=1"),
            ),
        )
        with Watch() as watch, serve(options) as server:
            server.load(ServingConfig(engine=engine, max_batch_size=1, instance_count=2))
            command = [
                *LOADTEST,
                server.endpoint.url("http"),
                "--model",
                MODEL,
                "--json",
                "--p99",
                f"{LIMIT_MS}ms",
            ]
            command += ["--rate", f"{PLAN.rate_per_s}", "--duration", f"{PLAN.duration_s}s"]
            # A host that takes processors away makes requests leave late; the server's clock judges that.
            ((name, key),) = server.endpoint.headers("http")
            command += ["--header", f"{name}: {key}"]
            command += ["--seed", f"{PLAN.seed}", "--max-send-lag", "1s"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr + done.stdout
        record = LoadTestRecord.model_validate_json(done.stdout)
        assert [(check.limit, check.answer) for check in record.checks] == [(LIMIT_MS, "met")]
        measured = record.measurement
        kept_ns, arrived_ns = (times[-len(due_ns) :] for times in traced(trace))  # without the trial request
        view = ServersView(due_ns, kept_ns, arrived_ns, watch.seen)
        assert kept_ns.min() >= SLEEP_MS * 1e6
        assert measured.requests == measured.server.requests == len(due_ns)
        # Two and a half responses of a hundred that took 200 ms longer would add 5 ms.
        server_ms, stalled_ms = view.latency_ns.mean() / 1e6, view.stalled_ns.mean() / 1e6
        assert server_ms - 1.0 <= measured.latency_mean_ms <= server_ms + 2.5 + stalled_ms
        return Taken(view=view, p99_ms=measured.latency_p99_ms)

    assert_no_tail_of_its_own(take)
