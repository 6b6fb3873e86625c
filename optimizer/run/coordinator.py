"""Share a study with workers on other machines, and start a worker process per GPU on this one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import Field, TypeAdapter

from loadgen.files import checksum
from model_repo.server.options import DEFAULT_IMAGE
from optimizer.call_options import OF_A_WORKER
from optimizer.config import STORAGE_VARIABLE, OptimizeConfig
from optimizer.machine.hardware import VISIBLE, Hardware, hardware_label
from optimizer.model.weights import number_format
from optimizer.run.prepare import Prepared
from optimizer.run.workload_inputs import TRACE_FILE
from search.record import Record
from search.study.pool import Workers
from search.study.store import STUDY_FILE
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


def _variants(prepared: Prepared) -> list[str]:
    """Return the precisions to make of the model; the engine of the unchanged one has the model's own format."""
    names = [engine.precision for engine in prepared.engines]
    if "fp32" in names:
        return names
    assert prepared.source is not None
    given = number_format(prepared.source.graph.proto)
    return ["fp32" if name == given else name for name in names]


class WorkerJob(Record):
    """All that a worker needs before it can measure, besides the files that its command line names."""

    run: str = Field(description="The search's directory and machine.")
    model_sha256: str
    same: dict[str, str | None] = Field(description="See `same_of`: a worker has to be and to be given the same.")
    config: dict[str, Any] = Field(description="The fields of `OptimizeConfig` in `MEASURED`.")


MEASURED = (
    *("limits", "confidence", "max_memory_bytes", "objective", "rate_to_serve_per_s", "seed"),
    *("shapes", "arrivals", "client_batch", "protocol", "shared_memory", "most_send_lag_ms"),
    *("precisions", "calibration_method", "io_precision"),
    *("max_batch_sizes", "instance_counts", "intra_op_threads", "queue_delays_us", "excluded"),
)
"""Fields of a run's configuration that say how to measure. None names code, an image or a file."""

_CONFIG = TypeAdapter(OptimizeConfig)


def job_of(config: OptimizeConfig, prepared: Prepared) -> WorkerJob:
    """Return the job for workers on the same hardware."""
    assert prepared.source is not None
    precisions = list(dict.fromkeys(_variants(prepared)))
    return WorkerJob(
        run=f"{config.output} on {socket.gethostname()}",
        model_sha256=prepared.source.sha256,
        same=same_of(config, prepared.machine),
        config={**measuring_fields(config), "precisions": precisions},
    )


def measuring_fields(config: OptimizeConfig) -> dict[str, Any]:
    """Return the fields that say how to measure, as JSON has them."""
    return dict(_CONFIG.dump_python(config, mode="json", include=set(MEASURED)))


def worker_config(job: WorkerJob, own: OptimizeConfig) -> OptimizeConfig:
    """Return the worker's own configuration with the fields of the job that say how to measure."""
    theirs = _CONFIG.validate_python({**_CONFIG.dump_python(own), **job.config})
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
