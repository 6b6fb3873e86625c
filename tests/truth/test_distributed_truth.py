"""Two workers send one plan, and what they report together is what the server's own clock says."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clusters import workers
from disturbance import Watch
from fake_triton import fake_triton
from machine import free_port
from tails import ServersView, Taken, assert_no_tail_of_its_own, lindley_ns, of_a_log

from loadgen.measurement.request_log import RequestLog
from loadgen.spec.plan import LoadPlan
from loadgen.traffic.arrivals import schedule

pytestmark = [pytest.mark.system, pytest.mark.measure]

DELAY_MS = 2.0
QUEUE_MS = 50.0
"""What a stall leaves in the queue is served so long after it."""
PLAN = LoadPlan(rate_per_s=300, duration_s=4.0, seed=5, timeout_s=1.0)

PROGRAM = """
import json, os, sys
import locust
from loadgen.distributed.secret import cluster_secret
secret = cluster_secret("127.0.0.1", os.environ)
from loadgen.distributed.master import DistributedGenerator
from loadgen.spec.plan import LoadPlan
from loadgen.spec.target import Target

url, port = sys.argv[1], int(sys.argv[2])
plan = LoadPlan(**json.loads(sys.argv[3]))
looks = []
master = DistributedGenerator(host="127.0.0.1", port=port, workers=2, secret=secret)
with master as several:
    several.wait_for_workers(lambda: False)
    run = several.run(
        Target(url=url, model_name="delay"), plan,
        watch=lambda log: bool(looks.append(log.scheduled_ns.tolist())),
    )
print(json.dumps({
    "log": {name: getattr(run.log, name).tolist() for name in ("scheduled_ns", "sent_ns", "done_ns", "outcome")},
    "n": run.measurement.n,
    "p99_ms": run.measurement.p99_ms,
    "problems": run.measurement.problems,
    "server_requests": run.measurement.server.requests,
    "looks": looks,
}))
"""


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], dict[str, Any]]:
    """Carries `PLAN` out with two workers against the server at an address."""
    monkeypatch.delenv("TRITUNE_CLUSTER_SECRET", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    fields = {name: getattr(PLAN, name) for name in ("rate_per_s", "duration_s", "seed", "timeout_s")}

    def carried_out(url: str) -> dict[str, Any]:
        port = free_port()
        with workers(port, (), ()):
            command = [sys.executable, "-c", PROGRAM, url, str(port), json.dumps(fields)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        seen: dict[str, Any] = json.loads(done.stdout)
        return seen

    return carried_out


def test_every_request_of_two_workers_waits_as_long_as_the_queue_of_both_says(
    together: Callable[[str], dict[str, Any]],
) -> None:
    """M/D/1. Clocks that do not agree, or a request of either that the other's do not wait for, would be seen."""
    planned = schedule(PLAN)

    def take() -> Taken:
        with Watch() as watch, fake_triton("--delay-ms", str(DELAY_MS), "--one-at-a-time") as server:
            seen = together(server.url)
            _, arrived_ns = server.kept(len(planned))
        columns: dict[str, Any] = {name: np.array(column) for name, column in seen["log"].items()}
        log = RequestLog(**columns)
        assert log.scheduled_ns.tolist() == planned.tolist()
        assert seen["server_requests"] == len(planned)
        assert not log.failed.any()
        for look in seen["looks"]:
            assert look == planned[: len(look)].tolist()
        counts = [len(look) for look in seen["looks"]]
        assert counts == sorted(counts)
        assert counts[-1] > 0.5 * len(planned)
        expected_ns = lindley_ns(arrived_ns, [DELAY_MS * 1e6] * len(planned))
        view = ServersView(planned, expected_ns, arrived_ns, watch.seen, after_ms=QUEUE_MS)
        return of_a_log(log, view, seen["p99_ms"])

    assert_no_tail_of_its_own(take)
