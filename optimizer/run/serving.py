"""The server of a run, and the bench that loads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from loadgen.errors import EnvironmentFailed, LoadError, UserError
from loadgen.processes import scratch_folder
from loadgen.sending.generator import LoadGenerator
from loadgen.spec.plan import Payload
from model_repo.errors import RepositoryWriteFailed, ServerDied, ServerError, ServerStartFailed, ServerTimeout
from model_repo.server.control import server_version
from model_repo.server.options import DEFAULT_IMAGE, ServerOptions
from model_repo.server.triton import check_runs_models, serve
from optimizer.config import OptimizeConfig
from optimizer.run.prepare import Prepared
from optimizer.run_file import remote_endpoint, slo_of
from search.records.slo import Slo
from search.trials.triton_bench import TritonBench
from search.workload import Workload

MOST_LOAD_PROCESSES = 4


def check_server(config: OptimizeConfig) -> None:
    """Raise UserError if the embedded server does not start or run models; other kinds bring a runtime along."""
    if config.server == "embedded":
        with explained(), scratch_folder("probe", config.output) as scratch:
            check_runs_models(ServerOptions(run_dir=config.output, scratch_dir=scratch))


@contextmanager
def serving_bench(
    config: OptimizeConfig,
    prepared: Prepared,
    workload: Workload,
    *,
    on_version: Callable[[str | None], None] = lambda _: None,
) -> Iterator[TritonBench]:
    """Start a server for the model's engines, and yield the bench that loads it until the block ends.

    `on_version` gets Triton's version; None if the server does not say it.
    """
    with (
        scratch_folder("server", config.output) as scratch,
        serve(server_options(config, prepared, scratch)) as server,
        load_generator(prepared) as generator,
    ):
        on_version(server_version(server.endpoint))
        yield TritonBench(
            server,
            generator,
            payload=payload_of(config, prepared),
            limit_ms=config.limits[0].limit_ms,
            timeout_s=request_timeout_s(slo_of(config)),
            most_send_lag_ms=config.most_send_lag_ms,
            workload=workload,
        )


def server_options(config: OptimizeConfig, prepared: Prepared, scratch: Path) -> ServerOptions:
    """Return the options of the run's server; its temporary files go to `scratch`."""
    return ServerOptions(
        run_dir=config.output,
        scratch_dir=scratch,
        kind=config.server,
        protocol=config.protocol,
        shared_memory=config.shared_memory == "system",
        http_port=config.server_port if config.protocol == "http" else None,
        grpc_port=config.server_port if config.protocol == "grpc" else None,
        gpu=bool(prepared.machine.gpus),
        remote=remote_endpoint(config),
        repository=config.server_repository if config.server == "remote" else None,
        image=config.docker_image or DEFAULT_IMAGE,
    )


def load_generator(prepared: Prepared) -> LoadGenerator:
    """Return a generator with one load process per four cores, at most four: each takes a core from the server."""
    return LoadGenerator(processes=min(MOST_LOAD_PROCESSES, max(1, prepared.machine.logical_cores // 4)))


def payload_of(config: OptimizeConfig, prepared: Prepared) -> Payload:
    """Return the payload of requests."""
    return Payload(
        batch_size=config.client_batch,
        shapes=sample_shapes(prepared),
        data_file=config.input_data,
        seed=config.seed,
        shared_memory=config.shared_memory,
    )


def sample_shapes(prepared: Prepared) -> dict[str, tuple[int, ...]]:
    """Return the shapes of requests per input, for inputs with dynamic dimensions."""
    return {
        spec.name: spec.concrete_shape
        for spec in prepared.engines[0].inputs
        if -1 in spec.shape and spec.concrete_shape is not None
    }


def request_timeout_s(slo: Slo) -> float:
    """Return the timeout of a request, far above the limit, so that slow responses are still measured."""
    return max(5.0, 20 * slo.first.limit_ms / 1000)


_OF_THE_ENVIRONMENT = (RepositoryWriteFailed, ServerDied, ServerStartFailed, ServerTimeout)


@contextmanager
def explained() -> Iterator[None]:
    """Turn errors of server and load into user errors of two lines."""
    try:
        yield
    except (ServerError, LoadError) as error:
        what, _, fix = str(error).partition("\n")
        kind = EnvironmentFailed if isinstance(error, _OF_THE_ENVIRONMENT) else UserError
        raise kind(what, fix or "The run's server.log and optimize.log have the details.") from error
