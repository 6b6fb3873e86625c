"""The real bench: a running Triton, loaded by load processes of their own."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from loadgen.errors import EnvironmentFailed, LoadError
from loadgen.measurement.cpu_contention import NeighbourSampler, counters_of_family
from loadgen.measurement.result import by_the_cache
from loadgen.measurement.send_lag import stop_when_late
from loadgen.measurement.server_stats import (
    BatchTimings,
    ServerTimings,
    cold_text,
    read_statistics,
    timings_between,
)
from loadgen.sending.generator import LoadGenerator
from loadgen.sending.plan_run import LoadRun
from loadgen.spec.plan import ClosedLoopPlan, LoadPlan, Payload
from loadgen.spec.target import Target, without_secrets
from loadgen.statistics.probe import Probe, Watch
from loadgen.status import CLIENT_LIMIT, TIMED_OUT
from loadgen.traffic.payloads import request_tensors, settled
from loadgen.wire.inference import infer
from loadgen.wire.questions import read_model_info
from model_repo.errors import BadServer, RepositoryWriteFailed, ServerDied, ServerError, ServerStartFailed
from model_repo.server.process import WORDS
from model_repo.server.triton import Server
from model_repo.spec import ServingConfig
from search.records.trial import AnswersRecord, MeasurementRecord
from search.simulator.service_times import ClosedLoop
from search.trials.bench import BenchFailed, Spent
from search.trials.colocated import ColocatedLoads
from search.trials.compared_answers import ComparedAnswers, at_levels
from search.trials.trial import measurement_to_record
from search.workload import Workload

log = logging.getLogger("tritune.bench")

LOG_LINES_IN_REASON = 8

MAX_GIVEN_UP = 1000
"""Triton 2.51 keeps the connection of a request that was given up if it loses the answer (ADR 9). 829 of them did
no harm, with 12,954 it could open no others."""


class TritonBench:
    """Serves with `server`, measures with `generator`; see `search.trials.bench.Bench`.

    The `colocated` loads are sent meanwhile, whenever there is load.
    """

    def __init__(
        self,
        server: Server,
        generator: LoadGenerator,
        *,
        payload: Payload,
        limit_ms: float,
        timeout_s: float,
        most_send_lag_ms: float | None = None,
        workload: Workload | None = None,
        colocated: ColocatedLoads | None = None,
    ) -> None:
        self.spent = Spent()
        self._colocated = colocated or ColocatedLoads()
        self._server = server
        self._generator = generator
        self._payload = payload
        self.workload = workload or Workload()
        self._limit_ms = limit_ms
        self._timeout_s = timeout_s
        self._most_send_lag_ms = most_send_lag_ms
        self._config: ServingConfig | None = None
        self._last: MeasurementRecord | None = None
        self._did_not_start = False  # the server, at its latest start
        self._given_up = 0  # requests that timed out since the server was started
        self._load_s: dict[ServingConfig, float] = {}
        self._memory_bytes: dict[ServingConfig, int] = {}

    def load(self, config: ServingConfig) -> None:
        """Serve this configuration; replace the server first if it has died or is worn out."""
        with self._counting_loading(), self._translated():
            if self._worn_out or not self._server.alive():
                self._restart_server()
            self._load_on_server(config)
        self._config = config

    def restart(self) -> None:
        """Replace the server by a fresh one and serve the same configuration again."""
        assert self._config is not None
        with self._counting_loading(), self._translated():
            self._restart_server()
            self._load_on_server(self._config)

    @property
    def _worn_out(self) -> bool:
        """True if clients gave up many requests, and we start the server: another one stays as it is."""
        return self._given_up > MAX_GIVEN_UP and self._server.start_s is not None

    def _restart_server(self) -> None:
        self._server.restart()
        self._given_up = 0

    def measure(self, rate_per_s: float, duration_s: float, seed: int, watch: Watch | None = None) -> Probe:
        """Send load at a rate with the arrivals of the run. Raises BenchFailed if the server or a model dies."""
        plan = LoadPlan(
            rate_per_s=rate_per_s,
            duration_s=duration_s,
            seed=seed,
            timeout_s=self._timeout_s,
            most_send_lag_ms=self._most_send_lag_ms,
            arrivals=self.workload.drawn(seed),
        )
        watch = stop_when_late(watch, plan, self._limit_ms)
        run, members = self._run_with_members(plan, self._payload, limit_ms=self._limit_ms, watch=watch)
        cold = next(filter(None, (run.measurement.cold, *map(cold_text, members.values()))), "")
        if cold:
            # What is executed for the first time says nothing about the configuration; the second time it is warm.
            log.info("measured again: %s", cold)
            run, _ = self._run_with_members(plan, self._payload, limit_ms=self._limit_ms, watch=watch)
        self._last = measurement_to_record(
            run.measurement, rate_per_s, rows_per_request=self.workload.rows_per_request
        )
        seen, config = self._server.memory_bytes(), self._config
        if seen is not None and config is not None:
            self._memory_bytes[config] = max(seen, self._memory_bytes.get(config, 0))
        log.info("measured %s", self._last)
        return Probe(
            log=run.log,
            overloaded=run.stopped == "overloaded",
            problems=tuple(run.measurement.problems),
            only_slower=bool(len(run.log))
            and not (run.log.outcome == CLIENT_LIMIT).any()
            and not run.log.colocated,
            began_unix_s=time.time() - (time.monotonic_ns() - run.began_ns) / 1e9,
        )

    def saturate(self, concurrency: int, duration_s: float, seed: int, shape: int | None = None) -> ClosedLoop:
        """Send a closed loop of requests of one shape or of all shapes.

        The executed batches are empty if the server keeps no table of them; their sizes are in requests.
        """
        payload, shapes = self._payload, self.workload.shapes
        if shape is not None and shapes is not None:
            payload = replace(payload, picked=shapes.requests_of(shape))
        plan = ClosedLoopPlan(concurrency=concurrency, duration_s=duration_s, seed=seed, timeout_s=self._timeout_s)
        run, of_members = self._run_with_members(plan, payload)
        members = {name: self._batches(timings) for name, timings in of_members.items()}
        batches = self._batches(run.measurement.server)
        return ClosedLoop(concurrency=concurrency, log=run.log, batches=batches, members=members)

    def _run_with_members(
        self, plan: LoadPlan | ClosedLoopPlan, payload: Payload, **limits: Any
    ) -> tuple[LoadRun, dict[str, ServerTimings | None]]:
        before = self._member_statistics()
        run = self._run(plan, payload, **limits)
        after = self._member_statistics()
        members = {name: timings_between(before[name], after[name]) for name in before}
        for timings in (run.measurement.server, *members.values()):
            for text in by_the_cache(timings):
                raise EnvironmentFailed(f"{text}.", "Or serve the model without response_cache.")
        return run, members

    def _member_statistics(self) -> dict[str, dict[str, Any] | None]:
        assert self._config is not None
        target, names = self._target(), [member.engine.model_name for member in self._config.members]
        called = [name for name in names if name not in self._colocated.names]
        return {name: read_statistics(replace(target, model_name=name)) for name in called}

    def _batches(self, server: ServerTimings | None) -> tuple[BatchTimings, ...]:
        rows, batches = self.workload.rows_per_request, () if server is None else server.batches
        return tuple(replace(one, batch_size=max(1, one.batch_size // rows)) for one in batches)

    def last_measurement(self) -> MeasurementRecord | None:
        """Return the figures of the latest `measure`."""
        return self._last

    def compare_answers(self, most_s: float) -> AnswersRecord:
        """See `search.trials.bench.Bench`. The compared requests carry their inputs, also with shared memory."""
        assert self._config is not None
        rows = self.workload.rows_per_request
        if not self._config.forms_batches_of(rows):
            return AnswersRecord(unseen="the server executes each request on its own")

        def load(users: int, seconds: float) -> float | None:
            plan = ClosedLoopPlan(concurrency=users, duration_s=seconds, timeout_s=self._timeout_s)
            run, members = self._run_with_members(plan, self._payload)
            timings = [one for one in (run.measurement.server, *members.values()) if one is not None]
            return max((one.mean_batch_size for one in timings if one.mean_batch_size), default=None)

        began, before_s, target = time.monotonic(), self.spent.load_s, self._target()
        try:
            info, _ = settled(read_model_info(target), self._payload)
            requests = request_tensors(info, self._payload)
            if self._payload.data_file is None:
                requests = at_levels(requests)
            ask = partial(infer, target, info, patience_s=self._timeout_s)
            answers = ComparedAnswers(requests, ask, rows_per_request=rows)
            return answers.under(load, most_s)
        except LoadError as error:
            return AnswersRecord(unseen=str(error).splitlines()[0].rstrip("."))
        finally:
            self.spent.load_s = before_s + time.monotonic() - began

    def _run(
        self,
        plan: LoadPlan | ClosedLoopPlan,
        payload: Payload,
        *,
        limit_ms: float | None = None,
        watch: Watch | None = None,
    ) -> LoadRun:
        """Send the load, on a fresh server if this one is worn out; once more if it dies and memory is not why."""
        if self._worn_out:
            log.info("%d requests timed out: the server is started anew", self._given_up)
            self.restart()
        with self._translated():
            try:
                return self._sent(plan, payload, limit_ms, watch)
            except ServerDied as error:
                if WORDS in str(error):
                    raise
                log.info("sent again to a fresh server: %s", error)
                self.restart()
                return self._sent(plan, payload, limit_ms, watch)

    def _sent(
        self, plan: LoadPlan | ClosedLoopPlan, payload: Payload, limit_ms: float | None, watch: Watch | None
    ) -> LoadRun:
        started, target = time.monotonic(), self._target()
        watching = NeighbourSampler(counters_of_family() if self._server.is_our_process else None)
        try:
            with watching, self._colocated.sent(target, plan) as beside:
                watch = beside.watching(watch)
                run = self._generator.run(target, plan, payload=payload, limit_ms=limit_ms, watch=watch)
            run = beside.joined(run, plan.duration_s)
        except LoadError:
            self._server.check()  # a dead server explains more than the error of the client
            raise
        finally:
            self.spent.load_s += time.monotonic() - started
            self.spent.contention += watching.seen
        logs = (run.log, *(run.log.colocated or {}).values())
        self._given_up += sum(int((log.outcome == TIMED_OUT).sum()) for log in logs)
        if any(log.failed.any() for log in logs):
            self._server.check()
        return run

    def _target(self) -> Target:
        assert self._config is not None
        endpoint, engine = self._server.endpoint, self._config.engine
        metrics_url = f"http://{endpoint.host}:{endpoint.metrics_port}/metrics"
        protocol = self.workload.record.protocol
        return Target(
            url=endpoint.url(protocol),
            model_name=engine.model_name,
            headers=endpoint.headers(protocol),
            metrics_url=metrics_url if engine.device == "gpu" and endpoint.metrics_port else None,
        )

    def replica_start_s(self, config: ServingConfig) -> float | None:
        """Return the seconds that a new server takes until it serves the configuration; None if it is not ours."""
        if self._server.start_s is None or config not in self._load_s:
            return None
        return self._server.start_s + self._load_s[config]

    def memory_bytes(self, config: ServingConfig) -> int | None:
        """Return the peak memory of server and models under load on the configuration; None if it is not known."""
        return self._memory_bytes.get(config)

    def _load_on_server(self, config: ServingConfig) -> None:
        """Load the configuration and keep the slowest time: a change of the instance count alone is quick."""
        started = time.monotonic()
        self._did_not_start = False
        self._server.load(config)
        self._load_s[config] = max(time.monotonic() - started, self._load_s.get(config, 0.0))

    @contextmanager
    def _counting_loading(self) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.spent.loading_s += time.monotonic() - started

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn errors of server and load into failures of the trial, with the last lines of the server's log.

        Raises EnvironmentFailed if no configuration can help: the disk failed, a server that others run is not as
        it has to be, or ours did not start twice in a row.
        """
        try:
            yield
        except (RepositoryWriteFailed, BadServer) as error:
            raise _environment(error) from error
        except ServerError as error:
            if isinstance(error, ServerStartFailed):
                if self._did_not_start:
                    raise _environment(error) from error
                self._did_not_start = True
            lines = error.log_tail.splitlines()[-LOG_LINES_IN_REASON:]
            raise BenchFailed("\n".join([str(error), *lines])) from error
        except LoadError as error:
            raise BenchFailed(without_secrets(str(error), self._server.endpoint.credentials)) from error


def _environment(error: ServerError) -> EnvironmentFailed:
    what, _, fix = str(error).partition("\n")
    return EnvironmentFailed(what, fix or "See the run's server.log; go on with --resume.")
