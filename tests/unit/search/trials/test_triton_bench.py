"""Unit: what no configuration can help ends the search; what one configuration broke fails its trial."""

from contextlib import nullcontext
from dataclasses import replace
from itertools import count
from pathlib import Path
from threading import Condition
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from engines import plain_engine
from simulated_generator import SimulatedGenerator
from strange_servers import RIGHT_GRPC, RIGHT_HTTP, Strange, document, grpc_answer, http_answer, serving

from loadgen.errors import EnvironmentFailed
from loadgen.measurement.server_stats import counters_of, timings_between
from loadgen.sending.plan_run import LoadRun
from loadgen.spec.plan import Payload
from loadgen.status import CLIENT_LIMIT, TIMED_OUT
from model_repo.errors import ModelLoadFailed, RepositoryWriteFailed, ServerDied, ServerStartFailed
from model_repo.server.process import WORDS
from model_repo.spec import Endpoint, ServingConfig
from search.records.slo import WorkloadRecord
from search.trials.bench import BenchFailed
from search.trials.triton_bench import TritonBench
from search.workload import Workload


class Failing:
    """A server whose next starts and loads fail."""

    def __init__(self, *, starts: list[Any] | tuple[()] = (), loads: list[Any] | tuple[()] = ()) -> None:
        self.starts, self.loads, self.lives = list(starts), list(loads), False

    def alive(self) -> bool:
        return self.lives

    def restart(self) -> None:
        if self.starts:
            raise self.starts.pop(0)
        self.lives = True

    def load(self, config: Any) -> None:
        if self.loads:
            raise self.loads.pop(0)


def bench_on(server: Any, generator: Any = None, **options: Any) -> TritonBench:
    given = {"payload": Payload(), "limit_ms": 50.0, "timeout_s": 1.0, **options}
    return TritonBench(server, generator, **given)


CONFIG = ServingConfig(engine=plain_engine(files=(("model.onnx", Path("model.onnx")),)), max_batch_size=4)
NO_START = ServerStartFailed("Triton ended before it was ready.\nSee its log.", log_tail="\x1b[2Jboom")


def test_a_server_that_cannot_be_started_again_ends_the_search() -> None:
    bench = bench_on(Failing(starts=[NO_START, NO_START]))
    with pytest.raises(BenchFailed, match="boom") as failed:
        bench.load(CONFIG)
    assert "\x1b" not in failed.value.reason
    with pytest.raises(EnvironmentFailed) as caught:
        bench.load(CONFIG)
    assert (caught.value.exit_code, caught.value.what) == (3, "Triton ended before it was ready.")
    assert caught.value.fix == "See its log."


def test_one_bad_start_is_forgotten_after_a_good_one() -> None:
    server = Failing(starts=[NO_START])
    bench = bench_on(server)
    with pytest.raises(BenchFailed):
        bench.load(CONFIG)
    bench.load(CONFIG)
    server.lives, server.starts = False, [NO_START]
    with pytest.raises(BenchFailed):
        bench.load(CONFIG)


def test_a_repository_that_cannot_be_written_ends_the_search_at_once() -> None:
    full = RepositoryWriteFailed("/runs/m/server cannot be written: No space left on device.\nFree some space.")
    with pytest.raises(EnvironmentFailed) as caught:
        bench_on(Failing(loads=[full])).load(CONFIG)
    assert caught.value.exit_code == 3


class Recorded(SimulatedGenerator):
    """Requests wait for each other, and those that took over a second have timed out."""

    def run(self, *given: Any, **named: Any) -> LoadRun:
        run = super().run(*given, **named)
        late = run.log.latency_ns > 1e9
        return replace(run, log=replace(run.log, outcome=np.where(late, np.uint8(TIMED_OUT), np.uint8(0))))


class Counted:
    """A server that counts its starts and loads."""

    def __init__(self, *, ours: bool = True) -> None:
        self.is_our_process, self.restarts, self.loads = ours, 0, 0
        self.start_s = 1.0 if ours else None
        self.endpoint = Endpoint(host="127.0.0.1", http_port=1, grpc_port=None, metrics_port=None)

    def alive(self) -> bool:
        return True

    def restart(self) -> None:
        self.restarts += 1

    def load(self, config: Any) -> None:
        self.loads += 1

    def memory_bytes(self) -> None:
        return None

    def check(self) -> None:
        return None


class Late(SimulatedGenerator):
    """Requests leave late, and the first one ends with an outcome."""

    outcome = 0

    def run(self, *given: Any, **named: Any) -> LoadRun:
        run = super().run(*given, **named)
        return replace(
            run,
            log=replace(
                run.log, outcome=np.uint8(self.outcome) * (run.log.scheduled_ns == run.log.scheduled_ns[0])
            ),
        )


@pytest.mark.parametrize(("outcome", "sent"), [(0, True), (TIMED_OUT, True), (CLIENT_LIMIT, False)])
def test_a_late_client_only_makes_latencies_longer_if_all_requests_left(outcome: int, sent: bool) -> None:
    generator = Late(service_ms=10.0, send_lag_ms=20.0)
    generator.outcome = outcome
    bench = bench_on(Counted(), generator)
    bench.load(CONFIG)
    probe = bench.measure(20.0, 3.0, seed=1)
    assert probe.problems
    assert probe.only_slower is sent


@pytest.mark.parametrize("ours", [True, False])
def test_after_requests_that_were_given_up_the_next_run_has_a_fresh_server(ours: bool) -> None:
    server: Any = Counted(ours=ours)
    bench = bench_on(server, Recorded(service_ms=10.0))
    bench.load(CONFIG)
    bench.measure(50.0, 3.0, seed=1)
    bench.measure(300.0, 3.0, seed=2)  # a third of it is answered in time
    bench.measure(300.0, 3.0, seed=2)
    assert (server.restarts, server.loads) == (0, 1)
    bench.measure(50.0, 3.0, seed=3)
    bench.measure(50.0, 3.0, seed=4)
    assert (server.restarts, server.loads) == ((1, 2) if ours else (0, 1))


@pytest.mark.parametrize("ours", [True, False])
def test_a_configuration_that_follows_requests_that_were_given_up_has_a_fresh_server(ours: bool) -> None:
    server: Any = Counted(ours=ours)
    bench = bench_on(server, Recorded(service_ms=10.0))
    bench.load(CONFIG)
    bench.measure(300.0, 3.0, seed=2)
    bench.load(CONFIG)
    bench.measure(300.0, 3.0, seed=2)
    bench.load(CONFIG)
    assert (server.restarts, server.loads) == (int(ours), 3)


class Dying(Counted):
    """A server that dies in each of its next runs."""

    def __init__(self, deaths: int, advice: str = "See its log.") -> None:
        super().__init__()
        self.deaths, self.advice = deaths, advice

    def check(self) -> None:
        if self.deaths:
            self.deaths -= 1
            raise ServerDied(f"The server has died.\n{self.advice}", log_tail="boom")


@pytest.mark.parametrize(
    ("server", "restarts", "measured"),
    [(Dying(1), 1, True), (Dying(2), 1, False), (Dying(1, WORDS), 0, False)],
    ids=["once", "always", "of memory"],
)
def test_a_run_whose_server_dies_is_repeated_once(server: Any, restarts: int, measured: bool) -> None:
    bench = bench_on(server, Recorded(service_ms=10.0))
    bench.load(CONFIG)
    with nullcontext() if measured else pytest.raises(BenchFailed, match="died"):
        assert bench.measure(150.0, 3.0, seed=2).log.failed.any()
    assert server.restarts == restarts


class Together:
    """Answers requests while its load runs when there are two, and those otherwise than it answers one alone."""

    def __init__(self, right: Any, wrong: Any) -> None:
        self.right, self.wrong, self.loading, self.waiting, self.served = right, wrong, False, 0, 0
        self.changed = Condition()

    def run(self, *given: Any, **named: Any) -> LoadRun:
        """Be the load generator: end when 40 requests have been answered in company."""
        with self.changed:
            self.loading = True
            assert self.changed.wait_for(lambda: self.served >= 40, timeout=60)
            self.loading = False
            self.changed.notify_all()
        return SimulatedGenerator().run(*given, **named)

    def __call__(self, to: Any) -> Any:
        with self.changed:
            self.waiting += 1
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.waiting > 1 or not self.loading, timeout=60)
            answer = self.wrong if self.loading else self.right
            self.served += self.loading
            self.waiting -= 1
            self.changed.notify_all()
        return to.sendall(answer) if isinstance(answer, bytes) else answer(to)


ONES = np.ones(2, np.float32).tobytes()
ANSWERS: dict[str, Any] = {
    "http": (RIGHT_HTTP["infer"], RIGHT_HTTP["infer"][:-8] + ONES),
    "grpc": (RIGHT_GRPC["infer"], lambda stream_id: RIGHT_GRPC["infer"](stream_id).replace(bytes(8), ONES)),
}
REFUSED: dict[str, Any] = {
    "http": http_answer(b'{"error": "busy"}', status="503 Service Unavailable"),
    "grpc": grpc_answer(None, b"14", b"busy"),
}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("under_load", ["wrong", "right", "refused"])
def test_a_server_that_answers_otherwise_in_company_mixes_rows(protocol: Any, under_load: str) -> None:
    right, wrong = ANSWERS[protocol]
    server: Any = Counted()
    together = Together(right, {"wrong": wrong, "right": right, "refused": REFUSED[protocol]}[under_load])
    workload = Workload(record=WorkloadRecord(protocol=protocol))
    with serving(Strange(name="s", scheme=protocol, answers={"infer": together})) as url:
        server.endpoint = SimpleNamespace(
            host="127.0.0.1", url=lambda protocol: url, metrics_port=None, headers=lambda protocol: ()
        )
        bench = bench_on(server, together, timeout_s=60.0, workload=workload)
        bench.load(replace(CONFIG, engine=replace(CONFIG.engine, model_name="m")))
        found = bench.compare_answers(60.0)
    assert found.mixed == (under_load == "wrong")
    assert (found.differing > 0) == (under_load == "wrong")
    assert (found.failed >= 40) == (under_load == "refused")
    assert found.compared >= 40 or under_load == "refused"


def test_a_model_that_does_not_load_fails_its_trial_however_often() -> None:
    bench = bench_on(Failing(loads=[ModelLoadFailed("m", "no")] * 5))
    for _ in range(5):
        with pytest.raises(BenchFailed):
            bench.load(CONFIG)


@pytest.mark.parametrize("of_the_model", [True, False])
def test_load_that_the_response_cache_answered_is_refused(of_the_model: bool) -> None:
    counts = count(1)

    def hits() -> dict[str, Any]:
        """Return the statistics of one more answer of the cache than at the question before."""
        counter = {"count": next(counts), "ns": 1}
        return {"model_stats": [{"version": "1", "inference_stats": {"success": counter, "cache_hit": counter}}]}

    def grown(connection: Any) -> None:
        connection.sendall(document(hits()))

    timings = timings_between(counters_of(hits()), counters_of(hits()))
    member = replace(CONFIG, engine=replace(CONFIG.engine, model_name="a"))
    whole = replace(CONFIG, engine=replace(CONFIG.engine, members=(member.engine,)), members=(member,))
    with serving(Strange(name="s", answers={"stats": grown})) as url:
        server: Any = Counted()
        server.endpoint = SimpleNamespace(
            host="127.0.0.1", url=lambda protocol: url, metrics_port=None, headers=lambda protocol: ()
        )
        bench = bench_on(server)
        bench._generator = SimulatedGenerator(service_ms=1.0, server=timings if of_the_model else None)  # type: ignore[assignment]
        bench.load(CONFIG if of_the_model else whole)
        for send in (lambda: bench.saturate(2, 0.1, seed=1), lambda: bench.measure(20.0, 1.0, seed=1)):
            with pytest.raises(EnvironmentFailed, match="cache answered 100%") as refused:
                send()
            assert refused.value.fix


def test_a_closed_loop_has_the_batches_of_each_member() -> None:
    asked: list[int] = []

    def grown(connection: Any) -> None:
        """Answer with a batch of 4 rows more, 8 ms each, than at the question before."""
        asked.append(len(asked))
        times = len(asked)
        stage = {"count": times, "ns": 8_000_000 * times}
        batch = {"batch_size": 4, "compute_infer": stage, "compute_input": {}, "compute_output": {}}
        stages = {"success": {"count": times, "ns": 1}}
        counters = {"version": "1", "inference_count": 4 * times, "execution_count": times}
        connection.sendall(
            document({"model_stats": [{**counters, "inference_stats": stages, "batch_stats": [batch]}]})
        )

    members = tuple(replace(CONFIG, engine=replace(CONFIG.engine, model_name=name)) for name in ("a", "b"))
    whole = replace(CONFIG.engine, members=tuple(member.engine for member in members))
    server: Any = Counted()
    workload = Workload(rows_per_request=2)
    with serving(Strange(name="s", answers={"stats": grown})) as url:
        server.endpoint = SimpleNamespace(
            host="127.0.0.1", url=lambda protocol: url, metrics_port=None, headers=lambda protocol: ()
        )
        bench = bench_on(server, SimulatedGenerator(service_ms=1.0), workload=workload)
        bench.load(replace(CONFIG, engine=whole, members=members))
        loop = bench.saturate(2, 0.1, seed=1)
    assert loop.batches == ()
    assert list(loop.members) == ["a", "b"]
    ((first,), (second,)) = loop.members.values()
    assert (first.batch_size, first.executions, first.infer_ms) == (2, 2, 8.0)
    assert second == first
    assert loop.executed == (first, second)
