"""The coordinator's study as other machines see it: what they need to know to measure for it."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING

from optimizer.config import public_config
from optimizer.errors import BadInput
from optimizer.gpu_choice import hardware_label
from optimizer.worker_processes import workers_on
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
        text = f"Other machines join with: optimize worker --study {study}, and the same storage."
        on_event(events.Note(text=text))
    storage = config.storage or f"sqlite:///{config.output / STUDY_FILE}"
    arguments = ["--study", study, *(["--cache-dir", str(config.cache_dir)] if config.cache_dir else [])]
    with workers_on(gpus, storage=storage, arguments=arguments, folder=config.output / WORKERS_FOLDER):
        try:
            yield crew
        finally:
            crew.close()


def order_of(config: OptimizeConfig, prepared: Prepared) -> OrderRecord:
    """What this run wants measured, on hardware like its own."""
    mine = {"output", "storage", "study", "gpu", "workers", "server_port", "cache_dir"}
    usable = tuple(dict.fromkeys(engine.precision for engine in prepared.engines))
    settings = public_config(config).model_copy(update={"precisions": usable})
    return OrderRecord(
        tritune_version=version("tritune"),
        run=f"{config.output} on {socket.gethostname()}",
        hardware=hardware_label(prepared.machine),
        model_sha256=prepared.source.sha256,
        slo=config.slo,
        objective=ObjectiveRecord(name=config.aim.name, rate_per_s=config.aim.rate_per_s),
        seed=config.seed,
        settings=settings.model_dump(mode="json", exclude=mine),
    )


def _check_whose(before: object, order: OrderRecord, study: str) -> None:
    if not isinstance(before, dict) or before.get("run") == order.run:
        return
    raise BadInput(
        f"The study {study} in this storage belongs to the run in {before.get('run')}.",
        "Give this run a study of its own with --study NAME, or go on with that one: --resume DIR.",
    )
