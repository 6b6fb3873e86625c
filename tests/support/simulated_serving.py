"""`optimize` and the workers that it starts, on simulated servers; nothing else of theirs is replaced.

python simulated_serving.py OPTIMIZE'S OPTIONS

Virtual time would be over before a worker has begun: the search waits for each to come, and for the first trial.
"""

import os
import sys
from contextlib import nullcontext
from pathlib import Path

import optuna
from simulated_bench import SimulatedBench
from waiting import wait_until

from optimizer import pipeline, worker_processes
from optimizer.cli import main
from optimizer.joint_search import WORKERS_FOLDER
from search.ledger import STUDY_FILE
from search.tasks import RECORD, TASK, WORKER_PREFIX

WAIT_S = 200.0
USED_GPU = "used-gpu"

worker_processes.COMMAND = (sys.executable, __file__, "worker")


class OneOfSeveral(SimulatedBench):
    """Leaves which GPU it was given in its run's directory."""

    def __init__(self, output: Path, **known):
        super().__init__(**known)
        (output / USED_GPU).write_text(os.environ["CUDA_VISIBLE_DEVICES"])
        self.output = output
        self.study = f"sqlite:///{output / STUDY_FILE}"

    @property
    def workers(self):
        return list((self.output / WORKERS_FOLDER).glob("*"))

    def load(self, config):
        if self.workers:
            study = optuna.load_study(study_name=None, storage=self.study)
            wait_until(lambda: self._all_came(study), most_s=WAIT_S)
            wait_until(lambda: self._one_measured(study), most_s=WAIT_S)
        super().load(config)

    def _all_came(self, study):
        return sum(name.startswith(WORKER_PREFIX) for name in study.user_attrs) >= len(self.workers)

    def _one_measured(self, study):
        """Or none was asked to."""
        asked_for = [trial.user_attrs for trial in study.get_trials(deepcopy=False) if TASK in trial.user_attrs]
        return not asked_for or any(RECORD in known for known in asked_for)


def simulated(config, prepared, demand):
    return nullcontext(OneOfSeveral(config.output, limit_ms=config.limit_ms, demand=demand))


if __name__ == "__main__":
    pipeline.serving_bench = simulated
    main()
