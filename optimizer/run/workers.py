"""Workers of a search: a process per GPU of this machine, and `optimize worker` on this or another one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import Field

from loadgen.command.app import finish_on_first_interrupt, stop_on_first_interrupt
from loadgen.console import SafeConsole
from loadgen.errors import BadInput
from loadgen.files import checksum, write_atomically
from loadgen.printable import printable
from model_repo.server.options import DEFAULT_IMAGE
from optimizer.call_options import OF_A_WORKER, WorkerCall
from optimizer.config import STORAGE_VARIABLE, OptimizeConfig
from optimizer.errors import explained
from optimizer.machine.hardware import VISIBLE, Hardware, gpus_for, hardware, hardware_label
from optimizer.model.weights import number_format
from optimizer.run.prepare import MODELS_FOLDER, Prepared, prepare, read_inputs
from optimizer.run.progress import Progress
from optimizer.run.run_directory import LOG_FILE, locked, logging_to, make_directory, to_log_and
from optimizer.run.serving import checked_inputs, serving_bench
from optimizer.run.workload_inputs import TRACE_FILE, keep_files, workload_of
from optimizer.run_file import CONFIG, objective_of, slo_of
from search.record import Record
from search.study.patient_storage import PatientStorage, open_storage
from search.study.pool import JOB, Workers
from search.study.store import STUDY_FILE
from search.study.worker import Worker, join
from search.trials import events
from search.trials.events import OnEvent

COMMAND = (sys.executable, "-P", "-c", "from optimizer.cli import main; main()", "worker")
"""-P: a folder in the current directory that is named like one of our packages must not come first."""

NOT_PASSED_ON = ("storage", "output", "gpu", "workers", "debug")
"""Options of a worker that `workers_on` sets in another way, or that belong to one process."""

LEAVE_S = 30.0
WORKER_LOG_FILE = "worker.log"


@contextmanager
def workers_on(
    gpus: Sequence[str], *, storage: str, arguments: Sequence[str], folder: Path
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run a worker on each of these GPUs until the block ends; each has a folder of its own below `folder`.

    The storage's URL is passed in the environment, which no process list shows.
    """
    started: list[subprocess.Popen[bytes]] = []
    try:
        for number, gpu in enumerate(gpus, 1):
            mine = folder / f"gpu-{number}"
            mine.mkdir(parents=True, exist_ok=True)
            environment = {**os.environ, VISIBLE: gpu, STORAGE_VARIABLE: storage}
            with (mine / WORKER_LOG_FILE).open("ab") as log:
                command = [*COMMAND, *arguments, "--output", str(mine), "--workers", "1"]
                started.append(
                    subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
                )
        yield started
    finally:
        for process in started:
            process.terminate()
        for process in started:
            try:
                process.wait(timeout=LEAVE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


WORKERS_FOLDER = "workers"


def workers_for(
    config: OptimizeConfig, prepared: Prepared, gpus: Sequence[str], on_event: OnEvent
) -> Workers | None:
    """Return the workers on `gpus` of this machine and in the storage; None if there are neither."""
    if (config.storage is None and not gpus) or prepared.source is None:
        return None
    config = with_kept_trace(config)

    def start(study: str) -> AbstractContextManager[object]:
        arguments = worker_arguments(config, study=study)
        if config.storage is not None:
            given = " ".join(arguments)
            text = f"Other machines join with: optimize worker {given}, their own paths, and the same storage."
            on_event(events.Note(text=text))
        storage = config.storage or f"sqlite:///{config.output / STUDY_FILE}"
        return workers_on(gpus, storage=storage, arguments=arguments, folder=config.output / WORKERS_FOLDER)

    return Workers(job=job_of(config, prepared).model_dump(mode="json"), start=start)


def with_kept_trace(config: OptimizeConfig) -> OptimizeConfig:
    """Return the configuration with the run's own copy of the trace, which its workers replay."""
    return config if config.trace is None else replace(config, trace=config.output / TRACE_FILE)


def worker_arguments(config: OptimizeConfig, **more: Any) -> list[str]:
    """Return the options of a worker with this configuration and `more` fields, without None and defaults.

    It takes no code, images or files from the storage.
    """
    found = []
    for name, one in OF_A_WORKER.items():
        value = more.get(one.field, getattr(config, one.field, None))
        if name not in NOT_PASSED_ON and value not in (None, one.usual):
            found += [one.flag, f"{value:g}{one.unit}" if one.unit else str(value)]
    return found


class WorkerJob(Record):
    """All that a worker needs before it can measure, besides the files that its command line names."""

    run: str = Field(description="The search's directory and machine.")
    model_sha256: str
    same: dict[str, str | None] = Field(description="See `same_of`: a worker has to be and to be given the same.")
    config: dict[str, Any] = Field(description="The fields of `OptimizeConfig` in `MEASURED`.")


MEASURED = (
    *("limits", "confidence", "max_memory_bytes", "objective", "rate_to_serve_per_s", "seed"),
    *("shapes", "arrivals", "client_batch", "protocol", "shared_memory", "most_send_lag_ms"),
    *("precisions", "calibration_method", "io_precision", "input_types"),
    *("max_batch_sizes", "instance_counts", "intra_op_threads", "queue_delays_us", "excluded"),
)
"""Fields of a run's configuration that say how to measure. None names code, an image or a file."""


def job_of(config: OptimizeConfig, prepared: Prepared) -> WorkerJob:
    """Return the job for workers on the same hardware."""
    assert prepared.source is not None
    precisions = list(dict.fromkeys(engine.precision for engine in prepared.engines))
    if "fp32" not in precisions:  # the engine of the unchanged model has the model's own format
        given = number_format(prepared.source.graph.proto)
        precisions = ["fp32" if name == given else name for name in precisions]
    return WorkerJob(
        run=f"{config.output} on {socket.gethostname()}",
        model_sha256=prepared.source.sha256,
        same=same_of(config, prepared.machine),
        config={**measuring_fields(config), "precisions": precisions},
    )


def measuring_fields(config: OptimizeConfig) -> dict[str, Any]:
    """Return the fields that say how to measure, as JSON has them."""
    return dict(CONFIG.dump_python(config, mode="json", include=set(MEASURED)))


def worker_config(job: WorkerJob, own: OptimizeConfig) -> OptimizeConfig:
    """Return the worker's own configuration with the fields of the job that say how to measure."""
    theirs = CONFIG.validate_python({**CONFIG.dump_python(own), **job.config})
    return replace(own, **{name: getattr(theirs, name) for name in MEASURED})


TRITUNE, HARDWARE = "tritune", "The hardware"


def same_of(config: OptimizeConfig, machine: Hardware) -> dict[str, str | None]:
    """Return what a worker has to have like its search, by its name in messages: files as checksums.

    Raises OSError.
    """
    return {
        TRITUNE: version("tritune"),
        HARDWARE: hardware_label(machine),
        "--server": config.server,
        "--docker-image": (config.docker_image or DEFAULT_IMAGE) if config.server == "docker" else None,
        "--input-data": checksum(config.input_data),
        "--calibration-data": checksum(config.calibration_data),
        "--trace": checksum(config.trace),
    }


STUDY_MARKER = ".worker"
"""A file with the study's name, by which a worker recognizes its own directory."""

LOOK_AGAIN_S = 2.0


def work(options: WorkerCall, own: OptimizeConfig) -> int:
    """Measure for the study until it is over; return the number of finished trials. Raises UserError.

    Of `own`, only fields count that `WORKER_CONFIG` names; the study has the others.
    """
    mine, others = gpus_for(own.gpu, own.workers)
    os.environ.update(mine)
    _make_directory(options.output, options.study, own.model)
    with (
        locked(options.output),
        logging_to(options.output / LOG_FILE, arguments=sys.argv[1:]),
        Progress(SafeConsole(stderr=True), budget_s=0.0) as progress,
        closing(open_storage(options.storage, on_event=to_log_and(progress))) as storage,
        workers_on(
            others,
            storage=options.storage,
            arguments=worker_arguments(own, study=options.study, idle_s=options.idle_s),
            folder=options.output,
        ) as children,
    ):
        on_event = to_log_and(progress)
        text = "Stopping: another worker gets what is not finished. Ctrl-C again stops now."
        with finish_on_first_interrupt(partial(on_event, events.Note(text=text, warning=True))) as stop:
            finished = _measure(options, own, storage, on_event, stop)
            while not stop() and any(child.poll() is None for child in children):
                time.sleep(LOOK_AGAIN_S)  # they end by themselves, as this one did
    return finished


def _make_directory(directory: Path, study: str, model: str | Path) -> None:
    """Create the worker's directory, or use an earlier one of this study again. Raises BadInput."""
    marker = directory / STUDY_MARKER
    used = directory.is_dir() and {path.name for path in directory.iterdir()} - {WORKER_LOG_FILE}
    if used and (not marker.is_file() or marker.read_text(errors="replace") != study + "\n"):
        raise BadInput(
            f"--output {directory} holds something else than a worker of the study {study} left there.",
            "Give a new directory.",
        )
    make_directory(directory, resume=True, model=model)
    write_atomically(marker, study + "\n")


def _measure(
    options: WorkerCall, own: OptimizeConfig, storage: PatientStorage, on_event: OnEvent, stop: Callable[[], bool]
) -> int:
    queue = join(storage, options.study, idle_s=options.idle_s, on_event=on_event, stop=stop)
    if queue is None:
        return 0
    job = _checked(queue.user_attrs[JOB], own, options.study)
    config = worker_config(job, own)
    on_event(events.PhaseStarted(name="prepare", detail=f"for {options.study}"))
    # The coordinator has judged the precisions. To do it again would take every core, also on its own machine.
    with stop_on_first_interrupt():
        inputs = read_inputs(config, work_dir=options.output / MODELS_FOLDER, on_event=on_event)
        inputs = checked_inputs(config, inputs, on_event)
        prepared = prepare(config, inputs, judged=False, on_event=on_event)
    if prepared.record.sha256 != job.model_sha256:
        raise BadInput(
            f"{config.model} is not the model of the study {options.study}: its checksum differs.",
            "Give the same file with --model FILE.",
        )
    keep_files(config)
    workload = workload_of(config, batched=prepared.engines[0].batched)
    with explained(), serving_bench(config, prepared, workload) as bench:
        on_event(events.PhaseStarted(name="search", detail=f"as a worker of {options.study}"))
        worker = Worker(
            name=f"{socket.gethostname()}-{os.getpid()}",
            hardware=str(job.same[HARDWARE]),
            queue=queue,
            storage=storage,
            space=prepared.space,
            bench=bench,
            slo=slo_of(config),
            seed=config.seed,
            workload=workload,
            directory=options.output,
            objective=objective_of(config),
            on_event=on_event,
            stop=stop,
            idle_s=options.idle_s,
        )
        return worker.run()


_FIXES = {
    TRITUNE: "Install the search's version here.",
    HARDWARE: "Choose one GPU (--gpu NAME, --workers auto), or start a search of its own on this machine.",
}
_FIX = (
    "Give the worker what the search was given, or leave out what it was not; files are compared by checksum, and "
    "a search with --server remote has no workers."
)


def _checked(published: dict[str, Any], own: OptimizeConfig, study: str) -> WorkerJob:
    """Return the job of a study. Raises BadInput if this machine or its files are not like the search's."""
    for what, mine in same_of(own, hardware()).items():
        theirs = published["same"].get(what)
        if mine != theirs or mine == "remote":
            shown = f": {printable(str(theirs))} there, {mine} here" if what in _FIXES else ""
            raise BadInput(f"{what} of this worker does not fit the study {study}{shown}.", _FIXES.get(what, _FIX))
    return WorkerJob.model_validate(published)
