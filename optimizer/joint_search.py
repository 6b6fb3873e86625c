"""The coordinator's study as other machines see it: what they need to know to measure for it."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING

from pydantic import ValidationError

from loadgen.printable import printable
from loadgen.user_errors import first_problem
from optimizer.demand import TRACE_FILE
from optimizer.errors import BadInput
from optimizer.gpu_choice import hardware_label
from optimizer.worker_processes import workers_on
from optimizer.worker_settings import settings_of
from search import events
from search.crew import Nobody, SharedStudy
from search.ledger import STUDY_FILE
from search.records import ObjectiveRecord
from search.tasks import ORDER, OrderRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from optimizer.config import OptimizeConfig
    from optimizer.prepare import Prepared
    from search.crew import Crew
    from search.events import OnEvent
    from search.ledger import Ledger

WORKERS_FOLDER = "workers"


@contextmanager
def crew_for(
    ledger: Ledger, config: OptimizeConfig, prepared: Prepared, gpus: Sequence[str], on_event: OnEvent
) -> Iterator[Crew]:
    """Who else measures until the block ends: workers on `gpus` of this machine, and whoever joins the storage.

    Without either it is nobody. Raises BadInput where the study belongs to another run.
    """
    if config.storage is None and not gpus:
        yield Nobody()
        return
    crew, study = SharedStudy(ledger=ledger), ledger.study.study_name
    order = order_of(config, prepared)
    _check_whose(ledger.study.user_attrs.get(ORDER), order, study)
    crew.publish(order)
    if config.storage is not None:
        given = " ".join(words(config, study))
        text = f"Other machines join with: optimize worker {given}, their own paths, and the same storage."
        on_event(events.Note(text=text))
    storage = config.storage or f"sqlite:///{config.output / STUDY_FILE}"
    arguments = [*words(config, study), *(["--cache-dir", str(config.cache_dir)] if config.cache_dir else [])]
    with workers_on(gpus, storage=storage, arguments=arguments, folder=config.output / WORKERS_FOLDER):
        try:
            yield crew
        finally:
            crew.close()


def words(config: OptimizeConfig, study: str) -> list[str]:
    """The options of a worker: it takes no code, images or files from the storage."""
    values = {
        "--study": study,
        "--model": config.model,
        "--input-data": config.input_data,
        "--calibration-data": config.calibration_data,
        "--trace": None if config.trace is None else config.output / TRACE_FILE,
        "--server": None if config.server == "embedded" else config.server,
        "--docker-image": config.docker_image,
    }
    return [word for option, value in values.items() if value is not None for word in (option, str(value))]


def order_of(config: OptimizeConfig, prepared: Prepared) -> OrderRecord:
    """What this run wants measured, on hardware like its own. Raises BadInput if no worker would do so."""
    try:
        settings = settings_of(config, [engine.precision for engine in prepared.engines])
        return OrderRecord(
            tritune_version=version("tritune"),
            run=printable(f"{config.output} on {socket.gethostname()}"),
            hardware=printable(hardware_label(prepared.machine)),
            model_sha256=prepared.source.sha256,
            slo=config.slo,
            objective=ObjectiveRecord(name=config.aim.name, rate_per_s=config.aim.rate_per_s),
            seed=config.seed,
            settings=settings.model_dump(mode="json"),
        )
    except ValidationError as error:
        raise BadInput(
            f"Workers would refuse to measure for this run: {first_problem(error)}.",
            "Leave --storage and --workers out, or change what is out of range.",
        ) from error


def _check_whose(before: object, order: OrderRecord, study: str) -> None:
    if not isinstance(before, dict) or before.get("run") == order.run:
        return
    raise BadInput(
        f"The study {study} in this storage belongs to the run in {printable(str(before.get('run')))}.",
        "Give this run a study of its own with --study NAME, or go on with that one: --resume DIR.",
    )
