"""`optimize worker`: one machine, or one GPU of it, that measures for a search that runs elsewhere."""

from __future__ import annotations

import os
import socket
import time
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

from pydantic import ValidationError

from loadgen.console import SafeConsole
from loadgen.files import write_atomically
from loadgen.interrupts import finish_on_first_interrupt, stop_on_first_interrupt
from loadgen.user_errors import first_problem
from optimizer import worker_processes
from optimizer.config import OptimizeConfig
from optimizer.demand import demand_of, keep_trace
from optimizer.errors import BadInput, UserError
from optimizer.gpu_choice import hardware_label, use_gpus
from optimizer.hardware import hardware
from optimizer.model_source import source_from_text
from optimizer.progress import Progress
from optimizer.run_lock import locked
from optimizer.session import logging_to, make_directory, to_log_and
from optimizer.worker_processes import workers_on
from optimizer.worker_settings import check_same, settings_from, worker_config
from search import events
from search.objective import Objective
from search.storage import open_storage
from search.working import Worker, join

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from optimizer.config import ServerKind
    from search.events import OnEvent
    from search.storage import Storage
    from search.tasks import OrderRecord
    from search.working import Joined

LOG_FILE = "optimize.log"
STUDY_MARKER = ".worker"
"""A file with the study's name, by which a worker knows its own directory."""

LOOK_AGAIN_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """What the command line says, and nothing else may say: code, images and files."""

    storage: str
    study: str
    output: Path
    model: str
    input_data: Path | None = None
    calibration_data: Path | None = None
    trace: Path | None = None
    server: ServerKind = "embedded"
    docker_image: str | None = None
    cache_dir: Path | None = None
    gpu: str | None = None
    workers: str = "1"
    idle_s: float = 600.0


def work(options: WorkerOptions) -> int:
    """Measure for the study until it is over; returns how many trials were finished. Raises UserError."""
    others = use_gpus(options.gpu, options.workers)
    _make_directory(options.output, options.study)
    with (
        locked(options.output),
        logging_to(options.output / LOG_FILE),
        Progress(SafeConsole(stderr=True), budget_s=0.0) as progress,
        closing(open_storage(options.storage, on_event=to_log_and(progress))) as storage,
        workers_on(
            others, storage=options.storage, arguments=_passed_on(options), folder=options.output
        ) as children,
    ):
        on_event = to_log_and(progress)

        def announce() -> None:
            on_event(events.Note(text="Handing on what is not finished. Ctrl-C again stops now.", warning=True))

        with finish_on_first_interrupt(announce) as stop:
            finished = _measure(options, storage, on_event, stop)
            while not stop() and any(child.poll() is None for child in children):
                time.sleep(LOOK_AGAIN_S)  # they leave by themselves, as this one did
    return finished


def _make_directory(directory: Path, study: str) -> None:
    """Make the worker's directory, or take one up again that was this study's. Raises BadInput."""
    marker = directory / STUDY_MARKER
    used = directory.is_dir() and {path.name for path in directory.iterdir()} - {worker_processes.LOG_FILE}
    if used and (not marker.is_file() or marker.read_text(errors="replace") != study + "\n"):
        raise BadInput(
            f"--output {directory} holds something else than a worker of the study {study} left there.",
            "Give a new directory.",
        )
    make_directory(directory, resume=True)
    write_atomically(marker, study + "\n")


def _measure(options: WorkerOptions, storage: Storage, on_event: OnEvent, stop: Callable[[], bool]) -> int:
    from optimizer.pipeline import MODELS_FOLDER, check_server, explained, serving_bench
    from optimizer.prepare import prepare

    found = _joined(options, storage, on_event, stop)
    if found is None:
        return 0
    order = found.order
    _check_fits(order, options.study)
    settings, own = settings_from(order, options.study), _own_config(options)
    check_same(settings, own, options.study)
    config = worker_config(order, settings, own)
    on_event(events.PhaseStarted(name="prepare", detail=f"for {options.study}"))
    # The coordinator has judged the precisions; doing it again takes every core, on its own machine too.
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
    demand = demand_of(config, batched=prepared.engines[0].batched)
    with explained(), serving_bench(config, prepared, demand) as bench:
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
            demand=demand,
            directory=options.output,
            objective=Objective(
                name=order.objective.name, rate_per_s=order.objective.rate_per_s, quantile=order.slo.quantile
            ),
            on_event=on_event,
            stop=stop,
            idle_s=options.idle_s,
        )
        return worker.run()


def _joined(
    options: WorkerOptions, storage: Storage, on_event: OnEvent, stop: Callable[[], bool]
) -> Joined | None:
    """The study and its order; it is waited for, as workers may start before their coordinator."""
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
                "Start optimize with the same --storage; it says the study's name.",
            )
        if not told:
            on_event(events.Note(text=f"Waiting for the study {options.study}."))
            told = True
        time.sleep(LOOK_AGAIN_S)
    return None


def _check_fits(order: OrderRecord, study: str) -> None:
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
    """What the command line says of the configuration; the order says the rest."""
    return OptimizeConfig(
        output=options.output,
        model=source_from_text(options.model),
        limit_ms=1.0,  # the order's
        input_data=options.input_data and options.input_data.absolute(),
        calibration_data=options.calibration_data and options.calibration_data.absolute(),
        trace=options.trace and options.trace.absolute(),
        server=options.server,
        docker_image=options.docker_image,
        cache_dir=options.cache_dir and options.cache_dir.absolute(),
    )


def _passed_on(options: WorkerOptions) -> list[str]:
    """The command line of a worker on another GPU of this machine."""
    values = {
        "--study": options.study,
        "--model": options.model,
        "--input-data": options.input_data,
        "--calibration-data": options.calibration_data,
        "--trace": options.trace,
        "--server": options.server,
        "--docker-image": options.docker_image,
        "--cache-dir": options.cache_dir,
        "--idle": f"{options.idle_s:g}s",
    }
    return [word for option, value in values.items() if value is not None for word in (option, str(value))]
