"""Run a search, guided by the simulator if it can predict, else by the sampler; `search.json` has its settings."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from loadgen.files import write_atomically
from model_repo.spec import Engine
from search.record import Record
from search.records.slo import ObjectiveRecord, Slo, WorkloadRecord
from search.space import MachineLimits, SearchSpace
from search.study.guided_search import GuidedSearch, surrogate_for
from search.study.sampler_search import SamplerSearch
from search.study.trial_runner import TrialRunner

SEARCH_FILE = "search.json"


class SearchRecord(Record):
    """The space, the machine that it was made for, the SLO, the seed and the time budget."""

    schema_version: Literal[2] = 2
    engines: tuple[str, ...]
    max_batch_sizes: tuple[int, ...]
    instance_counts: tuple[int, ...]
    intra_op_threads: tuple[int, ...]
    max_queue_delays_us: tuple[int, ...]
    cores: int
    memory_bytes: int
    slo: Slo
    workload: WorkloadRecord = WorkloadRecord()
    objective: ObjectiveRecord = ObjectiveRecord()
    seed: int
    time_budget_s: float

    def space(self, engines: tuple[Engine, ...]) -> SearchSpace:
        """Return the space, with the engines of these labels."""
        return SearchSpace(
            engines=engines,
            max_batch_sizes=self.max_batch_sizes,
            instance_counts=self.instance_counts,
            intra_op_threads=self.intra_op_threads,
            max_queue_delays_us=self.max_queue_delays_us,
            limits=MachineLimits(cores=self.cores, memory_bytes=self.memory_bytes),
            rows_per_request=self.workload.rows_per_request,
        )


def write_search(directory: Path, runner: TrialRunner) -> None:
    """Write the settings of a search."""
    space, aim = runner.store.space, runner.store.objective
    record = SearchRecord(
        engines=tuple(str(label) for label in space.axes()["engine"]),
        max_batch_sizes=space.max_batch_sizes,
        instance_counts=space.instance_counts,
        intra_op_threads=space.intra_op_threads,
        max_queue_delays_us=space.max_queue_delays_us,
        cores=space.limits.cores,
        memory_bytes=space.limits.memory_bytes,
        slo=runner.slo,
        workload=runner.workload.record,
        objective=ObjectiveRecord(name=aim.name, rate_per_s=aim.rate_per_s),
        seed=runner.seed,
        time_budget_s=runner.budget.total_s,
    )
    write_atomically(directory / SEARCH_FILE, record.model_dump_json(indent=1) + "\n")


def run_search(runner: TrialRunner) -> None:
    """Try configurations until nothing promising is left, the budget is used, or `runner.stop` returns True."""
    write_search(runner.store.path.parent, runner)
    if not GuidedSearch(runner, surrogate_for(runner)).run():
        SamplerSearch(runner).run()
    runner.collect_finished()
