"""`optimize` and the workers that it starts, on simulated servers; nothing else of theirs is replaced.

python simulated_serving.py OPTIMIZE'S OPTIONS

Virtual time would be over before a worker has begun: the search waits for each to come, and for the first trial.
"""

import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import optuna
from simulated_bench import SimulatedBench

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
            self._until(lambda study: len([one for one in study.user_attrs if one.startswith(WORKER_PREFIX)]))
            self._until(lambda study: self._measured(study.get_trials(deepcopy=False)))
        super().load(config)

    def _measured(self, trials):
        asked_for = [trial.user_attrs for trial in trials if TASK in trial.user_attrs]
        return len(self.workers) if not asked_for or any(RECORD in known for known in asked_for) else 0

    def _until(self, count):
        deadline = time.monotonic() + WAIT_S
        study = optuna.load_study(study_name=None, storage=self.study)
        while count(study) < len(self.workers):
            logs = [(worker / worker_processes.LOG_FILE).read_text() for worker in self.workers]
            assert time.monotonic() < deadline, logs
            time.sleep(0.1)


def simulated(config, prepared, demand):
    return nullcontext(OneOfSeveral(config.output, limit_ms=config.limit_ms, demand=demand))


if __name__ == "__main__":
    pipeline.serving_bench = simulated
    main()
