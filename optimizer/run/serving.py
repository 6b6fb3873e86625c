"""The server of a run, and the bench that loads it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from loadgen.processes import scratch_folder
from loadgen.sending.generator import LoadGenerator
from loadgen.spec.limits import Limits
from loadgen.spec.plan import Payload
from loadgen.traffic.model_info import bytes_per_value
from model_repo.errors import ModelLoadFailed
from model_repo.server.control import model_config, server_says
from model_repo.server.launchers import check_launcher
from model_repo.server.options import DEFAULT_IMAGE, ServerOptions
from model_repo.server.overrides import OverridingServer, overriding
from model_repo.server.triton import Server, check_runs_models, serve
from model_repo.spec import Engine, ServingConfig
from optimizer.cached import default_cache_dir
from optimizer.child import threads
from optimizer.config import OptimizeConfig
from optimizer.errors import explained
from optimizer.machine.hardware import hardware
from optimizer.run.prepare import Inputs, Prepared, exported
from optimizer.run.workload_inputs import payload_of, protocol_of
from optimizer.run_file import remote_endpoint, slo_of
from optimizer.space_options import WithModel
from search.records.slo import Slo
from search.simulator.surrogate import engine_alone_per_s
from search.trials import events
from search.trials.colocated import ColocatedLoad, ColocatedLoads
from search.trials.events import OnEvent, timed_step
from search.trials.triton_bench import TritonBench
from search.workload import Workload

CORES_A_LOAD_PROCESS, MAX_BY_CORES = 4, 4
REQUESTS_A_LOAD_PROCESS_PER_S, BYTES_A_LOAD_PROCESS_PER_S = 8_000, 3e8
"""A load process per four cores, at most four: each takes a core from the server. More, on half of the cores at
most, for what the fastest engine could answer: on 16 cores four processes were late with 13,500 small requests a
second each (18 ms, p99 of the send lag), and with 0.5 GB/s each of images over gRPC (11 ms)."""


def checked_inputs(config: OptimizeConfig, inputs: Inputs, on_event: OnEvent) -> Inputs:
    """Return the inputs, exported if they have to be while the server is checked.

    A server of the user's own models is checked where it completes their configurations. Raises UserError if the
    server is not installed, or if the embedded one does not start or run models: others bring a runtime along.
    """
    if config.repository is not None:
        return inputs
    with threads(1) as pool:
        exporting = pool.submit(exported, config, inputs, on_event=on_event)
        with timed_step(on_event, "check of the server"), explained():
            check_launcher(config.server)
            if config.server == "embedded":
                with scratch_folder("probe", config.output) as scratch:
                    check_runs_models(ServerOptions(run_dir=config.output, scratch_dir=scratch))
        return exporting.result()


def completed_configs(config: OptimizeConfig, engine: Engine) -> dict[str, dict[str, Any]]:
    """Return the configurations of a user's model and its members as a server of the run's kind completes them.

    Raises ModelLoadFailed, and UserError if the server does not start.
    """
    with scratch_folder("probe", config.output) as scratch:
        options = server_options(config, scratch, gpu=bool(hardware().gpus), completes_config=True)
        with explained(but=ModelLoadFailed), _serving(options) as server:
            unread = partial(ServingConfig, max_batch_size=0, dynamic_batching=False)
            names = [one.model_name for one in (engine, *engine.members)]
            if isinstance(server, OverridingServer):
                return server.originals([*names[1:], names[0]])
            server.load(unread(engine=engine, members=tuple(unread(engine=member) for member in engine.members)))
            return {name: model_config(server.endpoint, name) for name in names}


def server_options(config: OptimizeConfig, scratch: Path, *, gpu: bool, **more: Any) -> ServerOptions:
    """Return the options of a server of the run, `more` among them."""
    overrides = config.server == "remote" and config.server_repository is None
    protocol = protocol_of(config)
    return ServerOptions(
        run_dir=config.output,
        scratch_dir=scratch,
        kind=config.server,
        protocol=protocol,
        shared_memory=config.shared_memory == "system",
        http_port=config.server_port if protocol == "http" else None,
        grpc_port=config.server_port if protocol == "grpc" else None,
        gpu=gpu,
        remote=remote_endpoint(config),
        repository=config.server_repository if config.server == "remote" else None,
        journals=journals_folder(config.cache_dir) if overrides else None,
        remote_wait_s=config.wait_ready_s or 0.0,
        image=config.docker_image or DEFAULT_IMAGE,
        **more,
    )


def journals_folder(cache_dir: Path | None) -> Path:
    """Return the folder that remembers how models of remote servers were configured."""
    return (cache_dir or default_cache_dir()) / "remote"


def _serving(options: ServerOptions, on_event: OnEvent = events.ignore) -> AbstractContextManager[Server]:
    if options.journals is None:
        return serve(options)
    return overriding(options, lambda text: on_event(events.Note(text=text, warning=True)))


@contextmanager
def serving_bench(
    config: OptimizeConfig,
    prepared: Prepared,
    workload: Workload,
    *,
    on_version: Callable[[str | None], None] = lambda _: None,
    on_event: OnEvent = events.ignore,
) -> Iterator[TritonBench]:
    """Start a server for the model's engines, and yield the bench that loads it until the block ends.

    `on_version` gets Triton's version; None if the server does not say it. What a server that others run lacks at
    the end is a note.
    """
    with (
        scratch_folder("server", config.output) as scratch,
        _serving(server_options(config, scratch, gpu=bool(prepared.machine.gpus)), on_event) as server,
        load_generator(config, prepared) as generator,
        ColocatedLoads(tuple(colocated_load(one, seed=config.seed) for one in config.with_models)) as colocated,
    ):
        on_version(server_says(server.endpoint, "version"))
        yield TritonBench(
            server,
            generator,
            payload=payload_of(config, prepared.engines[0]),
            limit_ms=config.limits[0].limit_ms,
            timeout_s=request_timeout_s(slo_of(config)),
            most_send_lag_ms=config.most_send_lag_ms,
            workload=workload,
            colocated=colocated,
        )


def colocated_load(one: WithModel, *, seed: int) -> ColocatedLoad:
    """Return the load of a model of `--with-model`: single rows."""
    colocated = one.limits[0].colocated
    assert colocated is not None
    limits = Limits(latency=one.limits)
    assert limits.strictest_ms is not None
    return ColocatedLoad(
        model=colocated,
        limit_ms=limits.strictest_ms,
        payload=Payload(data_file=one.input_data, seed=seed),
        processes=min(MAX_BY_CORES, math.ceil(one.rate_per_s / REQUESTS_A_LOAD_PROCESS_PER_S)),
    )


def load_generator(config: OptimizeConfig, prepared: Prepared) -> LoadGenerator:
    """Return the generator of a run's load."""
    processes = load_processes(
        prepared.engines,
        cores=prepared.machine.logical_cores,
        limit_ms=config.limits[0].limit_ms,
        rows_per_request=config.client_batch,
        shared_memory=config.shared_memory == "system",
    )
    return LoadGenerator(processes=processes)


def load_processes(
    engines: Sequence[Engine], *, cores: int, limit_ms: float, rows_per_request: int, shared_memory: bool
) -> int:
    """Return how many processes send the load, by cores, and by requests and bytes that the engines could take.

    With `shared_memory` the inputs are not sent.
    """
    by_cores = min(MAX_BY_CORES, max(1, cores // CORES_A_LOAD_PROCESS))
    rows_per_s = max(engine_alone_per_s(engine, limit_ms=limit_ms) for engine in engines)
    row_bytes = sum(
        bytes_per_value(tensor.datatype) * math.prod(tensor.concrete_shape or ()) for tensor in engines[0].inputs
    )
    bytes_per_s = 0.0 if shared_memory else rows_per_s * row_bytes
    requests_per_s = rows_per_s / rows_per_request
    busy = requests_per_s / REQUESTS_A_LOAD_PROCESS_PER_S + bytes_per_s / BYTES_A_LOAD_PROCESS_PER_S
    return max(by_cores, min(math.ceil(busy), cores // 2))


def request_timeout_s(slo: Slo) -> float:
    """Return the timeout of a request, far above the limit, so that slow responses are still measured.

    A run in which Triton lost an answer (ADR 9) lasts that much longer.
    """
    return max(2.0, 20 * max(limit.limit_ms for limit in slo.tested) / 1000)
