"""`optimize` and the workers that it starts, on simulated servers; nothing else of theirs is replaced.

python simulated_serving.py OPTIMIZE'S OPTIONS

Virtual time would end before a worker begins: the search waits for each worker, and for the first trial.
"""

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import optuna
from optuna import Study
from simulated_bench import SimulatedBench
from waiting import wait_until

from model_repo.spec import ServingConfig
from optimizer.cli import main
from optimizer.run import pipeline, workers
from optimizer.run.workers import WORKERS_FOLDER
from search.study.pool import RECORD, TASK, WORKER_PREFIX, queue_of
from search.study.store import STUDY_FILE, STUDY_NAME

WAIT_S = 200.0
USED_GPU = "used-gpu"


class OneOfSeveral(SimulatedBench):
    """Writes the number of its GPU into the run's directory."""

    def __init__(self, output: Path, **known: Any) -> None:
        super().__init__(**known)
        (output / USED_GPU).write_text(os.environ["CUDA_VISIBLE_DEVICES"])
        self.output = output
        self.study = f"sqlite:///{output / STUDY_FILE}"

    @property
    def workers(self) -> list[Any]:
        return list((self.output / WORKERS_FOLDER).glob("*"))

    def load(self, config: ServingConfig) -> None:
        if self.workers:
            study = optuna.load_study(study_name=queue_of(STUDY_NAME), storage=self.study)
            wait_until(lambda: self._all_came(study), most_s=WAIT_S)
            wait_until(lambda: self._one_measured(study), most_s=WAIT_S)
        super().load(config)

    def _all_came(self, study: Study) -> bool:
        return sum(name.startswith(WORKER_PREFIX) for name in study.user_attrs) >= len(self.workers)

    def _one_measured(self, study: Study) -> bool:
        """Or none was asked to."""
        asked_for = [trial.user_attrs for trial in study.get_trials(deepcopy=False) if TASK in trial.user_attrs]
        return not asked_for or any(RECORD in known for known in asked_for)


def simulated(config: Any, prepared: Any, workload: Any, **_of_a_real_server: Any) -> nullcontext[Any]:
    return nullcontext(OneOfSeveral(config.output, limit_ms=config.limits[0].limit_ms, workload=workload))


if __name__ == "__main__":
    workers.COMMAND = (sys.executable, __file__, "worker")  # type: ignore[assignment]
    pipeline.serving_bench = workers.serving_bench = simulated  # type: ignore[assignment, attr-defined]
    main()
