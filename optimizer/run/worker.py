"""`optimize worker`: measure on this machine, or on one GPU of it, for a search that runs elsewhere."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path

from pydantic import ValidationError

from loadgen.command.app import finish_on_first_interrupt, stop_on_first_interrupt
from loadgen.console import SafeConsole
from loadgen.errors import BadInput, UserError, first_problem
from loadgen.files import write_atomically
from loadgen.spec.limits import LatencyLimit
from optimizer.config import OptimizeConfig, WorkerOptions
from optimizer.machine.hardware import hardware, hardware_label, use_gpus
from optimizer.run import coordinator
from optimizer.run.coordinator import worker_arguments, workers_on
from optimizer.run.prepare import MODELS_FOLDER, prepare
from optimizer.run.progress import Progress
from optimizer.run.run_directory import LOG_FILE, locked, logging_to, make_directory, to_log_and
from optimizer.run.serving import check_server, explained, serving_bench
from optimizer.run.worker_settings import check_same, settings_from, worker_config
from optimizer.run.workload_inputs import keep_trace, workload_of
from search.study.storage import Storage, open_storage
from search.study.tasks import WorkerJob
from search.trials import events
from search.trials.events import OnEvent
from search.trials.objective import Objective
from search.workers.worker import JoinedStudy, Worker, join

STUDY_MARKER = ".worker"
"""A file with the study's name, by which a worker recognizes its own directory."""

LOOK_AGAIN_S = 2.0


def work(options: WorkerOptions) -> int:
    """Measure for the study until it is over; return the number of finished trials. Raises UserError."""
    others = use_gpus(options.gpu, options.workers)
    _make_directory(options.output, options.study)
    with (
        locked(options.output),
        logging_to(options.output / LOG_FILE),
        Progress(SafeConsole(stderr=True), budget_s=0.0) as progress,
        closing(open_storage(options.storage, on_event=to_log_and(progress))) as storage,
        workers_on(
            others, storage=options.storage, arguments=worker_arguments(asdict(options)), folder=options.output
        ) as children,
    ):
        on_event = to_log_and(progress)

        def announce() -> None:
            on_event(events.Note(text="Handing unfinished trials on. Ctrl-C again stops now.", warning=True))

        with finish_on_first_interrupt(announce) as stop:
            finished = _measure(options, storage, on_event, stop)
            while not stop() and any(child.poll() is None for child in children):
                time.sleep(LOOK_AGAIN_S)  # they end by themselves, as this one did
    return finished


def _make_directory(directory: Path, study: str) -> None:
    """Create the worker's directory, or use an earlier one of this study again. Raises BadInput."""
    marker = directory / STUDY_MARKER
    used = directory.is_dir() and {path.name for path in directory.iterdir()} - {coordinator.WORKER_LOG_FILE}
    if used and (not marker.is_file() or marker.read_text(errors="replace") != study + "\n"):
        raise BadInput(
            f"--output {directory} holds something else than a worker of the study {study} left there.",
            "Give a new directory.",
        )
    make_directory(directory, resume=True)
    write_atomically(marker, study + "\n")


def _measure(options: WorkerOptions, storage: Storage, on_event: OnEvent, stop: Callable[[], bool]) -> int:
    found = _joined(options, storage, on_event, stop)
    if found is None:
        return 0
    order = found.order
    _check_fits(order, options.study)
    settings, own = settings_from(order, options.study), _own_config(options)
    check_same(settings, own, options.study)
    config = worker_config(order, settings, own)
    on_event(events.PhaseStarted(name="prepare", detail=f"for {options.study}"))
    # The coordinator has judged the precisions. To do it again would take every core, also on its own machine.
    with stop_on_first_interrupt():
        prepared = prepare(
            config,
            work_dir=options.output / MODELS_FOLDER,
            judged=False,
            check_server=partial(check_server, config),
            on_event=on_event,
        )
    if prepared.source.sha256 != order.model_sha256:
        raise BadInput(
            f"{config.model} is not the model of the study {options.study}: its checksum differs.",
            "Give the same file with --model FILE.",
        )
    keep_trace(config)
    workload = workload_of(config, batched=prepared.engines[0].batched)
    with explained(), serving_bench(config, prepared, workload) as bench:
        on_event(events.PhaseStarted(name="search", detail=f"as a worker of {options.study}"))
        worker = Worker(
            name=f"{socket.gethostname()}-{os.getpid()}",
            hardware=order.hardware,
            study=found.study,
            storage=storage,
            space=prepared.space,
            bench=bench,
            slo=order.slo,
            seed=order.seed,
            workload=workload,
            directory=options.output,
            objective=Objective(
                name=order.objective.name, rate_per_s=order.objective.rate_per_s, quantile=order.slo.first.quantile
            ),
            on_event=on_event,
            stop=stop,
            idle_s=options.idle_s,
        )
        return worker.run()


def _joined(
    options: WorkerOptions, storage: Storage, on_event: OnEvent, stop: Callable[[], bool]
) -> JoinedStudy | None:
    """Wait for the study, as workers may start before their coordinator; return it, or None if stopped.

    Raises BadInput if the study is of another version, and UserError if there is none after `idle_s`.
    """
    deadline, told = time.monotonic() + options.idle_s, False
    while not stop():
        try:
            joined = join(storage, options.study)
        except ValidationError as error:
            raise BadInput(
                f"The study {options.study} is not of this version, or was changed: {first_problem(error)}.",
                f"Install the coordinator's version here; this is {version('tritune')}.",
            ) from error
        if joined is not None:
            return joined
        if time.monotonic() > deadline:
            raise UserError(
                f"There is no study {options.study} in the storage after {options.idle_s:.0f} s.",
                "Start optimize with the same --storage; it prints the study's name.",
            )
        if not told:
            on_event(events.Note(text=f"Waiting for the study {options.study}."))
            told = True
        time.sleep(LOOK_AGAIN_S)
    return None


def _check_fits(order: WorkerJob, study: str) -> None:
    mine = hardware_label(hardware())
    if order.hardware != mine:
        raise BadInput(
            f"The study {study} is about {order.hardware}, and this is {mine}: their rates cannot be compared.",
            "Choose one GPU (--gpu NAME, --workers auto), or start a search of its own on this machine.",
        )
    if order.tritune_version != version("tritune"):
        raise BadInput(
            f"The study {study} is of tritune {order.tritune_version}, and this is {version('tritune')}.",
            f"Install the same here: pip install tritune=={order.tritune_version}",
        )


def _own_config(options: WorkerOptions) -> OptimizeConfig:
    """Return the part of the configuration that is on the command line; the job has the rest."""
    return OptimizeConfig(
        output=options.output,
        model=options.model,
        limits=(LatencyLimit(limit_ms=1.0),),  # the job's
        input_data=options.input_data,
        calibration_data=options.calibration_data,
        trace=options.trace,
        server=options.server,
        docker_image=options.docker_image,
        cache_dir=options.cache_dir,
    )
