"""Share a study with workers on other machines, and start a worker process per GPU on this one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from loadgen.errors import BadInput, first_problem
from loadgen.options.declare import option_fields
from loadgen.printable import printable
from optimizer.config import STORAGE_VARIABLE, OptimizeConfig, WorkerOptions
from optimizer.machine.hardware import VISIBLE, hardware_label
from optimizer.model.weights import number_format
from optimizer.run.prepare import Prepared
from optimizer.run.worker_settings import settings_of
from optimizer.run.workload_inputs import TRACE_FILE
from optimizer.run_file import objective_of, slo_of
from search.records.slo import ObjectiveRecord
from search.study.store import STUDY_FILE
from search.study.tasks import WorkerJob
from search.trials import events
from search.trials.events import OnEvent
from search.workers.pool import Workers

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
        _end(started)


def _end(started: Sequence[subprocess.Popen[bytes]]) -> None:
    """Terminate the processes, and kill those that do not end."""
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
    """Return the workers on `gpus` of this machine and in the storage; None if there are neither.

    Raises BadInput if no worker would accept this run's job.
    """
    if config.storage is None and not gpus:
        return None

    def start(study: str) -> AbstractContextManager[object]:
        if config.storage is not None:
            given = " ".join(worker_options(config, study))
            text = f"Other machines join with: optimize worker {given}, their own paths, and the same storage."
            on_event(events.Note(text=text))
        storage = config.storage or f"sqlite:///{config.output / STUDY_FILE}"
        arguments = worker_options(config, study)
        return workers_on(gpus, storage=storage, arguments=arguments, folder=config.output / WORKERS_FOLDER)

    return Workers(job=job_of(config, prepared), start=start)


def worker_options(config: OptimizeConfig, study: str) -> list[str]:
    """Return the command-line options of a worker, which takes no code, images or files from the storage."""
    trace = None if config.trace is None else config.output / TRACE_FILE
    return worker_arguments({**_values(config), "study": study, "trace": trace})


def worker_arguments(values: Mapping[str, Any]) -> list[str]:
    """Return the command line of a worker whose fields have these values, without None and defaults."""
    found = []
    for name, one in option_fields(WorkerOptions).items():
        value = values.get(one.field)
        if name not in NOT_PASSED_ON and value not in (None, one.usual):
            found += [one.flag, f"{value:g}{one.declared.unit}" if one.declared.unit else str(value)]
    return found


def _values(config: OptimizeConfig) -> dict[str, Any]:
    return {one.field: getattr(config, one.field) for one in option_fields(OptimizeConfig).values()}


def _variants(prepared: Prepared) -> list[str]:
    """Return the precisions to make of the model; the engine of the unchanged one has the model's own format."""
    names = [engine.precision for engine in prepared.engines]
    if "fp32" in names:
        return names
    given = number_format(prepared.source.graph.proto)
    return ["fp32" if name == given else name for name in names]


def job_of(config: OptimizeConfig, prepared: Prepared) -> WorkerJob:
    """Return the job for workers on the same hardware. Raises BadInput if no worker would accept it."""
    aim = objective_of(config)
    try:
        settings = settings_of(config, _variants(prepared))
        return WorkerJob(
            tritune_version=version("tritune"),
            run=printable(f"{config.output} on {socket.gethostname()}"),
            hardware=printable(hardware_label(prepared.machine)),
            model_sha256=prepared.source.sha256,
            slo=slo_of(config),
            objective=ObjectiveRecord(name=aim.name, rate_per_s=aim.rate_per_s),
            seed=config.seed,
            settings=settings.model_dump(mode="json"),
        )
    except ValidationError as error:
        raise BadInput(
            f"Workers would refuse to measure for this run: {first_problem(error)}.",
            "Leave --storage and --workers out, or change the value that is out of range.",
        ) from error
