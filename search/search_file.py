"""`search.json` of a run: what its search went by, so that every decision in it can be repeated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from loadgen.files import write_atomically
from model_repo.kept_files import read_kept
from search.demand import DemandRecord
from search.record import Record
from search.records import ObjectiveRecord, Slo
from search.space import MachineLimits, SearchSpace

if TYPE_CHECKING:
    from pathlib import Path

    from model_repo.spec import Engine
    from search.attempts import Attempts

SEARCH_FILE = "search.json"


class SearchRecord(Record):
    """The space, the machine that it was made for, the limit, the seed and the seconds."""

    schema_version: Literal[1] = 1
    engines: tuple[str, ...]
    max_batch_sizes: tuple[int, ...]
    instance_counts: tuple[int, ...]
    intra_op_threads: tuple[int, ...]
    max_queue_delays_us: tuple[int, ...]
    cores: int
    memory_bytes: int
    slo: Slo
    demand: DemandRecord = DemandRecord()
    objective: ObjectiveRecord = ObjectiveRecord()
    seed: int
    time_budget_s: float

    def space(self, engines: tuple[Engine, ...]) -> SearchSpace:
        """The space again, with the engines that the labels stand for."""
        return SearchSpace(
            engines=engines,
            max_batch_sizes=self.max_batch_sizes,
            instance_counts=self.instance_counts,
            intra_op_threads=self.intra_op_threads,
            max_queue_delays_us=self.max_queue_delays_us,
            limits=MachineLimits(cores=self.cores, memory_bytes=self.memory_bytes),
            rows_per_request=self.demand.rows_per_request,
        )


def write_search(directory: Path, search: Attempts) -> None:
    """Write what a search goes by."""
    space, aim = search.ledger.space, search.ledger.objective
    record = SearchRecord(
        engines=tuple(str(label) for label in space.axes()["engine"]),
        max_batch_sizes=space.max_batch_sizes,
        instance_counts=space.instance_counts,
        intra_op_threads=space.intra_op_threads,
        max_queue_delays_us=space.max_queue_delays_us,
        cores=space.limits.cores,
        memory_bytes=space.limits.memory_bytes,
        slo=search.slo,
        demand=search.demand.record,
        objective=ObjectiveRecord(name=aim.name, rate_per_s=aim.rate_per_s),
        seed=search.seed,
        time_budget_s=search.budget.total_s,
    )
    write_atomically(directory / SEARCH_FILE, record.model_dump_json(indent=1) + "\n")


def read_search(directory: Path) -> SearchRecord:
    """What the search in `directory` went by. Raises OSError and pydantic's ValidationError."""
    return SearchRecord.model_validate_json(read_kept(directory, SEARCH_FILE))
