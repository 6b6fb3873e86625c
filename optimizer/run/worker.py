"""`optimize worker`: measure on this machine, or on one GPU of it, for a search that runs elsewhere."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from loadgen.command.app import finish_on_first_interrupt, stop_on_first_interrupt
from loadgen.console import SafeConsole
from loadgen.errors import BadInput
from loadgen.files import write_atomically
from loadgen.printable import printable
from optimizer.call_options import WorkerCall
from optimizer.config import OptimizeConfig
from optimizer.errors import explained
from optimizer.machine.hardware import hardware, use_gpus
from optimizer.run import coordinator
from optimizer.run.coordinator import (
    HARDWARE,
    TRITUNE,
    WorkerJob,
    same_of,
    worker_arguments,
    worker_config,
    workers_on,
)
from optimizer.run.prepare import MODELS_FOLDER, prepare
from optimizer.run.progress import Progress
from optimizer.run.run_directory import LOG_FILE, locked, logging_to, make_directory, to_log_and
from optimizer.run.serving import check_server, serving_bench
from optimizer.run.workload_inputs import keep_files, workload_of
from optimizer.run_file import objective_of, slo_of
from search.study.patient_storage import PatientStorage, open_storage
from search.study.pool import JOB
from search.study.worker import Worker, join
from search.trials import events
from search.trials.events import OnEvent

STUDY_MARKER = ".worker"
"""A file with the study's name, by which a worker recognizes its own directory."""

LOOK_AGAIN_S = 2.0


def work(options: WorkerCall, own: OptimizeConfig) -> int:
    """Measure for the study until it is over; return the number of finished trials. Raises UserError.

    Of `own`, only fields count that `WORKER_CONFIG` names; the study has the others.
    """
    others = use_gpus(own.gpu, own.workers)
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

        def announce() -> None:
            text = "Stopping: another worker gets what is not finished. Ctrl-C again stops now."
            on_event(events.Note(text=text, warning=True))

        with finish_on_first_interrupt(announce) as stop:
            finished = _measure(options, own, storage, on_event, stop)
            while not stop() and any(child.poll() is None for child in children):
                time.sleep(LOOK_AGAIN_S)  # they end by themselves, as this one did
    return finished


def _make_directory(directory: Path, study: str, model: str | Path) -> None:
    """Create the worker's directory, or use an earlier one of this study again. Raises BadInput."""
    marker = directory / STUDY_MARKER
    used = directory.is_dir() and {path.name for path in directory.iterdir()} - {coordinator.WORKER_LOG_FILE}
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
        prepared = prepare(
            config,
            work_dir=options.output / MODELS_FOLDER,
            judged=False,
            check_server=partial(check_server, config),
            on_event=on_event,
        )
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
