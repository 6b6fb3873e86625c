"""The whole flow: a model and a limit in, the cheapest configuration that was seen to keep it out."""

from __future__ import annotations

import logging
import time
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

from deploy.plan import BundleOptions
from loadgen.errors import LoadError
from loadgen.files import write_atomically
from loadgen.interrupts import stop_on_first_interrupt
from loadgen.plan import Payload
from loadgen.runner import LoadGenerator
from loadgen.scratch import scratch_folder
from loadgen.user_errors import EnvironmentFailed
from model_repo.errors import RepositoryWriteFailed, ServerDied, ServerError, ServerStartFailed, ServerTimeout
from model_repo.layout import write_final_repository
from model_repo.options import DEFAULT_IMAGE, ServerOptions
from model_repo.probe import check_runs_models
from model_repo.server import serve
from optimizer.bundling import bundle_run
from optimizer.demand import demand_of, keep_input_data, keep_trace
from optimizer.errors import UserError
from optimizer.gpu_choice import hardware_label
from optimizer.joint_search import crew_for
from optimizer.model_source import label_of
from optimizer.prepare import Prepared, prepare
from optimizer.time_use import time_use_of
from optimizer.verdict import explain_infeasible
from search import events
from search.budget import Budget
from search.certification import certify_best
from search.confirmations import read_confirmations
from search.convert import trial_to_record
from search.frontier import frontier_of
from search.ledger import open_ledger
from search.neighbours import record_of
from search.objective import PowerUnknown
from search.recommend import alternatives_to, cost_of, gain_over, reason_for
from search.records import (
    MachineRecord,
    ModelRecord,
    ObjectiveRecord,
    RecommendationRecord,
    SecondsRecord,
    ServedRecord,
)
from search.run_files import RECOMMENDATION_FILE
from search.study import Search, SearchImpossible
from search.triton_bench import TritonBench

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from optimizer.config import OptimizeConfig
    from search.bench import RunBench
    from search.certification import Certified
    from search.demand import Demand
    from search.engine_profile import TimeUseRecord
    from search.events import OnEvent
    from search.ledger import Ledger
    from search.records import Slo

log = logging.getLogger("tritune")

MODELS_FOLDER = "model"
REPOSITORY = "model_repository"
MOST_LOAD_PROCESSES = 4
VERSIONS_OF = (
    "tritune",
    "onnxruntime-gpu",
    "tensorrt",
    "tensorrt-rtx-cu13-bindings",
    "cuda-bindings",
    "onnx",
    "nvidia-pytriton",
    "tritonclient",
    "locust",
    "optuna",
    "numpy",
)


def optimize(
    config: OptimizeConfig,
    *,
    gpus: Sequence[str] = (),
    on_event: OnEvent = events.ignore,
    stop: Callable[[], bool] = lambda: False,
    bench_for: Callable[[OptimizeConfig, Prepared, Demand], AbstractContextManager[RunBench]] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> RecommendationRecord:
    """Find, certify and write down the answer. All files go to `config.output`, which must exist.

    `gpus` get workers of their own; see `optimizer.gpu_choice`. `bench_for` serves and measures, None: a real
    Triton; `clock` gives the seconds of the time budget. Raises UserError: BadInput, NothingFound when no
    configuration keeps the limit.
    """
    budget = Budget(total_s=config.time_budget_s, clock=clock)
    on_event(events.PhaseStarted(name="prepare", detail=label_of(config.model)))
    config = keep_input_data(config)
    with stop_on_first_interrupt():
        prepared = prepare(
            config,
            work_dir=config.output / MODELS_FOLDER,
            check_server=partial(check_server, config),
            on_event=on_event,
        )
    keep_trace(config)
    budget.begin_search()
    slo, demand = config.slo, demand_of(config, batched=prepared.engines[0].batched)
    ledger = open_ledger(
        prepared.space,
        config.output,
        storage=config.storage,
        seed=config.seed,
        study=config.study,
        hardware=hardware_label(prepared.machine),
        objective=config.aim,
        on_event=on_event,
    )
    with explained(), closing(ledger.storage), (bench_for or serving_bench)(config, prepared, demand) as bench:
        on_event(events.PhaseStarted(name="search", detail=f"{prepared.space.size()} configurations"))
        with crew_for(ledger, config, prepared, gpus, on_event) as crew:
            search = Search(
                ledger=ledger,
                bench=bench,
                slo=slo,
                budget=budget,
                seed=config.seed,
                demand=demand,
                on_event=on_event,
                stop=stop,
                crew=crew,
            )
            search.run()
        on_event(events.PhaseStarted(name="certify"))
        certified = certify_best(
            ledger, bench, slo=slo, budget=budget, seed=config.seed, demand=demand, on_event=on_event, stop=stop
        )
    if certified is None:
        raise explain_infeasible(ledger.trials, slo, config.aim, read_confirmations(config.output))
    on_event(events.PhaseStarted(name="finish"))
    time_use = time_use_of(
        certified.winner,
        certified.baseline,
        model=prepared.model,
        here=config.server != "remote",
        seed=config.seed,
        on_event=on_event,
    )
    found = _recommendation(config, prepared, slo, ledger, certified, bench, budget, time_use)
    with explained():
        write_final_repository(config.output / REPOSITORY, certified.winner.config)
    write_atomically(config.output / RECOMMENDATION_FILE, found.model_dump_json(indent=2) + "\n")
    _write_bundle(config, on_event)
    return found


def _write_bundle(config: OptimizeConfig, on_event: OnEvent) -> None:
    """The answer as deployment files; where none follow from it, the answer stands without them."""
    try:
        bundle_run(config.output, target="all", options=BundleOptions())
    except UserError as error:
        on_event(events.Note(text=f"No deployment bundle was written: {error.what} {error.fix}", warning=True))
    except Exception as error:
        log.exception("no bundle")
        on_event(events.Note(text=f"No deployment bundle was written: {error}", warning=True))


def check_server(config: OptimizeConfig) -> None:
    """Raise UserError if the embedded server does not start or run models; other kinds bring a runtime along."""
    if config.server == "embedded":
        with explained(), scratch_folder("probe", config.output) as scratch:
            check_runs_models(ServerOptions(run_dir=config.output, scratch_dir=scratch))


@contextmanager
def serving_bench(config: OptimizeConfig, prepared: Prepared, demand: Demand) -> Iterator[TritonBench]:
    """A server for the model's engines, and what loads it so, until the block ends."""
    with (
        scratch_folder("server", config.output) as scratch,
        serve(server_options(config, prepared, scratch)) as server,
        load_generator(prepared) as generator,
    ):
        yield TritonBench(
            server,
            generator,
            payload=payload_of(config, prepared),
            limit_ms=config.limit_ms,
            timeout_s=request_timeout_s(config.slo),
            most_send_lag_ms=config.most_send_lag_ms,
            demand=demand,
        )


def server_options(config: OptimizeConfig, prepared: Prepared, scratch: Path) -> ServerOptions:
    """How the server of this run is obtained; what it needs while it runs goes to `scratch`."""
    from optimizer.remote import remote_endpoint

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
    """One load process on a small machine, where each takes a core from the server; more where one may not do."""
    return LoadGenerator(processes=min(MOST_LOAD_PROCESSES, max(1, prepared.machine.logical_cores // 4)))


def payload_of(config: OptimizeConfig, prepared: Prepared) -> Payload:
    """What requests carry."""
    return Payload(
        batch_size=config.client_batch,
        shapes=sample_shapes(prepared),
        data_file=config.input_data,
        seed=config.seed,
        shared_memory=config.shared_memory,
    )


def sample_shapes(prepared: Prepared) -> dict[str, tuple[int, ...]]:
    """The shapes that requests have, per input, for dimensions that the served model leaves open."""
    return {
        spec.name: spec.concrete_shape
        for spec in prepared.engines[0].inputs
        if -1 in spec.shape and spec.concrete_shape is not None
    }


def request_timeout_s(slo: Slo) -> float:
    """When a request is given up: long after the limit, so that a slow answer is still seen as what it is."""
    return max(5.0, 20 * slo.limit_ms / 1000)


def _recommendation(
    config: OptimizeConfig,
    prepared: Prepared,
    slo: Slo,
    ledger: Ledger,
    certified: Certified,
    bench: RunBench,
    budget: Budget,
    time_use: TimeUseRecord | None,
) -> RecommendationRecord:
    winner, baseline, spent = certified.winner, certified.baseline, bench.spent
    measured = [trial_to_record(one) for one in (*ledger.trials, winner, *([baseline] if baseline else []))]
    total_s = budget.elapsed_s()
    return RecommendationRecord(
        tritune_version=version("tritune"),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        model=ModelRecord(
            name=prepared.model.name,
            file=label_of(config.model),
            sha256=prepared.source.sha256,
            opset=prepared.source.opset,
            batching=prepared.batching.reason,
        ),
        slo=slo,
        objective=ObjectiveRecord(name=config.aim.name, rate_per_s=config.aim.rate_per_s),
        demand=bench.demand.record,
        winner=trial_to_record(winner),
        baseline=None if baseline is None else trial_to_record(baseline),
        gain=gain_over(winner, baseline) if config.objective != "latency" else None,
        cost=cost_of(
            prepared.price,
            winner,
            baseline,
            rate_to_serve_per_s=config.rate_to_serve_per_s,
            peak_rate_per_s=config.peak_rate_per_s,
            rows_per_request=config.client_batch,
        ),
        alternatives=alternatives_to(winner, ledger.current, config.aim),
        reason=reason_for(winner, ledger.trials, config.aim, rate_to_serve_per_s=config.rate_to_serve_per_s),
        seconds=SecondsRecord(
            total=total_s,
            load=spent.load_s,
            loading_models=spent.loading_s,
            other=max(0.0, total_s - spent.load_s - spent.loading_s),
        ),
        machine=MachineRecord(
            cpu=prepared.machine.cpu,
            cores=prepared.machine.logical_cores,
            memory_bytes=prepared.machine.memory_bytes,
            gpus=tuple(gpu.name for gpu in prepared.machine.gpus),
            versions=dict(_versions()),
        ),
        served=ServedRecord(
            replica_start_s=bench.replica_start_s(winner.config), memory_bytes=bench.memory_bytes(winner.config)
        ),
        frontier=frontier_of(measured) if config.pareto else (),
        neighbours=record_of(spent.neighbours),
        seed=config.seed,
        repository=REPOSITORY,
        accuracy=prepared.accuracy,
        time_use=time_use,
    )


def _versions() -> Iterator[tuple[str, str]]:
    from importlib.metadata import PackageNotFoundError

    for package in VERSIONS_OF:
        try:
            yield package, version(package)
        except PackageNotFoundError:
            continue


_OF_THE_ENVIRONMENT = (RepositoryWriteFailed, ServerDied, ServerStartFailed, ServerTimeout)


@contextmanager
def explained() -> Iterator[None]:
    """Errors of the rooms below as two lines for the user."""
    try:
        yield
    except (ServerError, LoadError) as error:
        what, _, fix = str(error).partition("\n")
        kind = EnvironmentFailed if isinstance(error, _OF_THE_ENVIRONMENT) else UserError
        raise kind(what, fix or "The run's server.log and optimize.log have the details.") from error
    except PowerUnknown as error:
        raise UserError(
            "--objective energy: the driver of this machine's GPU does not say what power it takes.",
            "Leave --objective out for the cheapest configuration.",
        ) from error
    except SearchImpossible as error:
        last = error.reasons[-1].splitlines()
        raise UserError(
            f"{len(error.reasons)} trials in a row failed, the last one because: {last[0]}",
            "See server.log in the run's directory; `optimize doctor` says what this machine lacks.",
        ) from error
