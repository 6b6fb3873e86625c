"""The real bench: a running Triton, loaded by load processes of their own."""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from loadgen.capacity import Probe
from loadgen.errors import LoadError
from loadgen.lateness import until_late
from loadgen.neighbours import NeighbourSampler, counters_of_family
from loadgen.plan import ClosedLoopPlan, LoadPlan, Target
from loadgen.user_errors import EnvironmentFailed
from model_repo.errors import RepositoryWriteFailed, ServerError, ServerStartFailed
from search.bench import BenchFailed, Spent
from search.convert import measurement_to_record
from search.demand import Demand
from search.service_time import ClosedLoop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loadgen.capacity import Watch
    from loadgen.plan import Payload
    from loadgen.runner import LoadGenerator, LoadRun
    from model_repo.server import Server
    from model_repo.spec import ServingConfig
    from search.records import MeasurementRecord

log = logging.getLogger("tritune.bench")

LOG_LINES_IN_REASON = 8


class TritonBench:
    """Serves with `server`, measures with `generator`; see `search.bench.Bench`."""

    def __init__(
        self,
        server: Server,
        generator: LoadGenerator,
        *,
        payload: Payload,
        limit_ms: float,
        timeout_s: float,
        most_send_lag_ms: float | None = None,
        demand: Demand | None = None,
    ) -> None:
        self.spent = Spent()
        self._server = server
        self._generator = generator
        self._payload = payload
        self.demand = demand or Demand()
        self._limit_ms = limit_ms
        self._timeout_s = timeout_s
        self._most_send_lag_ms = most_send_lag_ms
        self._config: ServingConfig | None = None
        self._last: MeasurementRecord | None = None
        self._did_not_start = False  # the server, at its latest start
        self._load_s: dict[ServingConfig, float] = {}
        self._memory_bytes: dict[ServingConfig, int] = {}

    def load(self, config: ServingConfig) -> None:
        """Serve this configuration; a server that died before is replaced first."""
        with self._counting_loading(), self._translated():
            if not self._server.alive():
                self._server.restart()
            self._load_on_server(config)
        self._config = config

    def restart(self) -> None:
        """Replace the server by a fresh one and serve the same configuration again."""
        assert self._config is not None
        with self._counting_loading(), self._translated():
            self._server.restart()
            self._load_on_server(self._config)

    def measure(self, rate_per_s: float, duration_s: float, seed: int, watch: Watch | None = None) -> Probe:
        """Send load at a rate, in the run's arrivals; a server or a model that dies on the way is a failure."""
        plan = LoadPlan(
            rate_per_s=rate_per_s,
            duration_s=duration_s,
            seed=seed,
            timeout_s=self._timeout_s,
            most_send_lag_ms=self._most_send_lag_ms,
            arrivals=self.demand.drawn(seed),
        )
        watch = until_late(watch, plan, self._limit_ms)
        run = self._run(plan, self._payload, limit_ms=self._limit_ms, watch=watch)
        self._last = measurement_to_record(
            run.measurement, rate_per_s, rows_per_request=self.demand.rows_per_request
        )
        self._note_memory()
        log.info("measured %s", self._last)
        return Probe(log=run.log, overloaded=run.stopped == "overloaded", problems=tuple(run.measurement.problems))

    def saturate(self, concurrency: int, duration_s: float, seed: int, shape: int | None = None) -> ClosedLoop:
        """Send a closed loop, of one shape or of all; what the server executed meanwhile is empty where it keeps
        no table of it.

        Its batch sizes are in requests.
        """
        payload, shapes = self._payload, self.demand.shapes
        if shape is not None and shapes is not None:
            payload = replace(payload, picked=shapes.requests_of(shape))
        plan = ClosedLoopPlan(concurrency=concurrency, duration_s=duration_s, seed=seed, timeout_s=self._timeout_s)
        run = self._run(plan, payload)
        server = run.measurement.server
        rows = self.demand.rows_per_request
        batches = () if server is None else server.batches
        in_requests = tuple(replace(one, batch_size=max(1, one.batch_size // rows)) for one in batches)
        return ClosedLoop(concurrency=concurrency, log=run.log, batches=in_requests)

    def last_measurement(self) -> MeasurementRecord | None:
        """The figures of the latest `measure`."""
        return self._last

    def _run(
        self,
        plan: LoadPlan | ClosedLoopPlan,
        payload: Payload,
        *,
        limit_ms: float | None = None,
        watch: Watch | None = None,
    ) -> LoadRun:
        assert self._config is not None
        endpoint, engine = self._server.endpoint, self._config.engine
        metrics_url = f"http://{endpoint.host}:{endpoint.metrics_port}/metrics"
        target = Target(
            url=endpoint.url(self.demand.record.protocol),
            model_name=engine.model_name,
            metrics_url=metrics_url if engine.device == "gpu" and endpoint.metrics_port else None,
        )
        started = time.monotonic()
        watching = NeighbourSampler(counters_of_family() if self._server.is_our_process else None)
        with self._translated():
            try:
                with watching:
                    run = self._generator.run(target, plan, payload=payload, limit_ms=limit_ms, watch=watch)
            except LoadError:
                self._server.check()  # a dead server explains more than what the client saw of it
                raise
            finally:
                self.spent.load_s += time.monotonic() - started
                self.spent.neighbours += watching.seen
            if run.log.failed.any():
                self._server.check()
        return run

    def replica_start_s(self, config: ServingConfig) -> float | None:
        """How long a fresh server takes until it serves the configuration; None where we do not start servers."""
        if self._server.start_s is None or config not in self._load_s:
            return None
        return self._server.start_s + self._load_s[config]

    def memory_bytes(self, config: ServingConfig) -> int | None:
        """The most that server and models took after a load on the configuration; None where it cannot be seen."""
        return self._memory_bytes.get(config)

    def _load_on_server(self, config: ServingConfig) -> None:
        """A change of the instance count alone is quick; what counts is the slowest load."""
        started = time.monotonic()
        self._did_not_start = False
        self._server.load(config)
        self._load_s[config] = max(time.monotonic() - started, self._load_s.get(config, 0.0))

    def _note_memory(self) -> None:
        seen, config = self._server.memory_bytes(), self._config
        if seen is not None and config is not None:
            self._memory_bytes[config] = max(seen, self._memory_bytes.get(config, 0))

    @contextmanager
    def _counting_loading(self) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.spent.loading_s += time.monotonic() - started

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Errors of serving and of load as failures of the trial, with what the server said last.

        Raises EnvironmentFailed for what no configuration can help: a disk, or a server that does not start twice
        in a row.
        """
        try:
            yield
        except RepositoryWriteFailed as error:
            raise _environment(error) from error
        except ServerError as error:
            if isinstance(error, ServerStartFailed):
                if self._did_not_start:
                    raise _environment(error) from error
                self._did_not_start = True
            lines = error.log_tail.splitlines()[-LOG_LINES_IN_REASON:]
            raise BenchFailed("\n".join([str(error), *lines])) from error
        except LoadError as error:
            raise BenchFailed(str(error)) from error


def _environment(error: ServerError) -> EnvironmentFailed:
    what, _, fix = str(error).partition("\n")
    return EnvironmentFailed(what, fix or "The run's server.log says more; go on with --resume.")
