"""Choose the protocol of a run's requests: measure once what each of Triton's front ends lets through."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from loadgen.errors import LoadError
from loadgen.files import write_atomically
from loadgen.processes import scratch_folder
from loadgen.spec.plan import ClosedLoopPlan
from loadgen.spec.target import Target
from model_repo.errors import ModelLoadFailed, ServerError
from model_repo.repository.write import write_repository
from model_repo.server.hosts import serve_repository
from model_repo.server.triton import with_usable_runtime
from model_repo.spec import Protocol, ServingConfig
from optimizer.config import OptimizeConfig
from optimizer.machine.hardware import answers_kept
from optimizer.run.prepare import Prepared
from optimizer.run.serving import load_generator, server_options
from optimizer.run.workload_inputs import payload_of
from search.records.recommendation import BETTER, FrontEndsRecord
from search.records.run_files import read_records
from search.simulator.service_times import answered_per_s
from search.simulator.surrogate import kinds_to_profile
from search.trials import events
from search.trials.events import OnEvent, timed_step

log = logging.getLogger("tritune.front_ends")

FRONT_ENDS_FILE = "front_ends.jsonl"

FEWEST_USERS, GROWTH, MOST_USERS = 4, 4, 256
"""Closed loops have 4, 16, 64 or 256 users: with 512 Triton loses answers over HTTP (ADR 9)."""

LOOP_S, ROUNDS = 0.25, 5
"""Each protocol gets five loops of 0.25 s, in turn; one before them, often slower, does not count."""

MeasureFrontEnds = Callable[[OptimizeConfig, Prepared], FrontEndsRecord | None]


def with_protocol(
    config: OptimizeConfig, prepared: Prepared, measure: MeasureFrontEnds, on_event: OnEvent
) -> tuple[OptimizeConfig, FrontEndsRecord | None]:
    """Return the configuration with gRPC if it is better, else HTTP, and what `measure` found now or once."""
    path, found = config.output / FRONT_ENDS_FILE, None
    if config.protocol != "auto":
        return config, next(iter(read_records(path, FrontEndsRecord, what="the rates of both protocols")), None)
    if config.server != "remote":
        try:
            with timed_step(on_event, "choice of the protocol"):
                found = measure(config, prepared)
        except (ServerError, LoadError) as error:
            text = f"HTTP, as gRPC could not be compared with it: {str(error).splitlines()[0]}"
            on_event(events.Note(text=text, warning=True))
    write_atomically(path, "" if found is None else f"{found.model_dump_json()}\n")
    return replace(config, protocol=(found and found.better) or "http"), found


def measure_front_ends(config: OptimizeConfig, prepared: Prepared) -> FrontEndsRecord | None:
    """Return what HTTP and gRPC let through; None if a loop gets no answer.

    A server of its own answers both, with the first kind in the order of profiling whose engine loads. Raises
    ServerError and LoadError.
    """
    space, limit_ms = prepared.space, config.limits[0].limit_ms
    points = [space.spread(1.0, None)] if space.members else kinds_to_profile(space, limit_ms=limit_ms)
    kinds = {(one["engine"], one.get("cuda_graphs")): one for one in reversed(points)}
    *others, last = [one for one in points if one in kinds.values()]
    for knobs in others:
        try:
            return _measured(config, prepared, space.config(knobs))
        except ModelLoadFailed as failure:
            log.warning("%s", failure)
    return _measured(config, prepared, space.config(last))


def _measured(config: OptimizeConfig, prepared: Prepared, served: ServingConfig) -> FrontEndsRecord | None:
    """Add users until HTTP lets no more through, or the mean latency exceeds the limit; then compare in turns."""
    enough_per_s = 1000 / config.limits[0].limit_ms  # of each user
    with scratch_folder("front-ends", config.output) as scratch, load_generator(config, prepared) as generator:
        options = server_options(config, scratch, gpu=bool(prepared.machine.gpus))
        options = with_usable_runtime(replace(options, http_port=None, grpc_port=None, exit_grace_s=0.0))
        write_repository(scratch / "models", served, runtime=options.runtime_or_default)
        with serve_repository(scratch / "models", options) as server:

            def per_s(protocol: Protocol, users: int) -> float:
                target = Target(url=server.endpoint.url(protocol), model_name=served.engine.model_name)
                plan = ClosedLoopPlan(concurrency=users, duration_s=LOOP_S)
                return answered_per_s(generator.run(target, plan, payload=payload_of(config, served.engine)).log)

            users, before_per_s = FEWEST_USERS, 0.0
            while (now_per_s := per_s("http", users)) > max(BETTER * before_per_s, enough_per_s * users):
                if users == MOST_USERS:
                    break
                users, before_per_s = GROWTH * users, now_per_s
            loops = [(per_s("http", users), per_s("grpc", users)) for _ in range(1 + ROUNDS)]
    http, grpc = zip(*loops[1:], strict=True)
    kept = answers_kept()
    lost_from_per_s = None if kept is None else kept * enough_per_s
    found = FrontEndsRecord(http=http, grpc=grpc, http_loses_from_per_s=lost_from_per_s)
    return found if all((*http, *grpc)) else None
