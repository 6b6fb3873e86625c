"""Run searches that die at their k-th write and continue; `test_kills_truth` runs it with kill_at_write.c.

    python killed_searches.py SHIM FOLDER KILLS

Every search is a fork of this process, so that imports run once, not a hundred times. Prints a line of JSON for
each kill.
"""

import ctypes
import json
import os
import shutil
import signal
import sqlite3
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from simulated_bench import BudgetOfLoad, SimulatedBench
from spaces import two_core_space

from loadgen.files import write_atomically
from loadgen.spec.limits import LatencyLimit
from model_repo.spec import ServingConfig
from search.records.run_files import TRIALS_FILE, whole_lines
from search.records.slo import Slo
from search.study.run import SamplerSearch
from search.study.store import STUDY_FILE, open_store
from search.study.trial_runner import TrialRunner
from search.trials.bench import Spent
from search.trials.context import TrialContext
from search.trials.trial import Trial, trial_of

TRIALS_BEFORE = 5
TRIALS_IN_ALL = 7
STATES = ("complete", "pruned", "infeasible", "failed")
RESULT = "recommendation.json"


def quick_trial(context: TrialContext, config: ServingConfig, number: int) -> Trial:
    """Run a trial of one short load run, so that 100 searches take a minute; its files are the usual ones."""
    context.bench.load(config)
    context.bench.measure(20.0, 0.5, number)
    state = STATES[number % len(STATES)]
    rate = {"complete": 100.0 + number, "pruned": 50.0, "infeasible": 0.0}.get(state)
    seen = context.bench.last_measurement()
    return trial_of(
        number,
        config,
        state,  # type: ignore[arg-type]
        state,
        spent=Spent(),
        rate_at_limit_per_s=rate,
        measurement=seen,
    )


def search(folder: Path, trials: int, bench: Any = None) -> None:
    """Continue the search in `folder` until it has so many trials, and write a recommendation."""
    space, bench = two_core_space(folder), bench or SimulatedBench()
    store = open_store(space, folder, storage=None, seed=1)
    running = TrialRunner(
        store=store,
        bench=bench,
        slo=Slo(limits=(LatencyLimit(limit_ms=50.0),)),
        budget=BudgetOfLoad(total_s=1e6, spent=bench.spent),
        seed=1,
        stop=lambda: len(store.trials) >= trials,
    )
    SamplerSearch(running, quick_trial).run()
    write_atomically(folder / RESULT, json.dumps({"trials": len(store.trials)}))
    store.storage.close()


def forked(work: Callable[[], object]) -> int:
    """Return the exit status of a child that does it, or minus the signal that ended it."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def told_to_optuna(folder: Path) -> tuple[list[list[object]], int]:
    """Return (trial's number, Optuna's state, value) of ended trials by number, and the number of open trials."""
    with sqlite3.connect(f"file:{folder / STUDY_FILE}?mode=ro", uri=True) as database:
        rows = database.execute(
            "select cast(a.value_json as integer), t.state, v.value from trials t "
            "join trial_user_attributes a on a.trial_id = t.trial_id and a.key = 'trial' "
            "left join trial_values v on v.trial_id = t.trial_id order by 1"
        ).fetchall()
        (still_open,) = database.execute(
            "select count(*) from trials where state in ('RUNNING', 'WAITING')"
        ).fetchone()
    database.close()
    return [list(row) for row in rows], still_open


def main() -> None:
    warnings.simplefilter("ignore")
    shim, root, kills = ctypes.CDLL(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    template, whole = root / "template", root / "whole"
    template.mkdir()
    search(template, TRIALS_BEFORE)  # before the forks, so that they have all imports and compiled code
    (template / RESULT).unlink()
    shutil.copytree(template, whole)

    def counted() -> None:
        shim.arm(0, 0)
        search(whole, TRIALS_IN_ALL)
        steps = shim.steps_so_far()
        (root / "steps").write_text(str(steps))

    assert forked(counted) == 0
    steps = int((root / "steps").read_text())
    files = sorted(path.name for path in whole.iterdir())
    for number in range(kills):
        folder = root / f"run-{number}"
        shutil.copytree(template, folder)
        at, torn = 1 + number * (steps - 1) // max(1, kills - 1), number % 2

        def killed(folder: Path = folder, at: int = at, torn: int = torn) -> None:
            shim.arm(at, torn)
            search(folder, TRIALS_IN_ALL)

        died = forked(killed)
        kept = list(whole_lines(folder / TRIALS_FILE))
        resumed = forked(lambda folder=folder: search(folder, TRIALS_IN_ALL))  # type: ignore[misc]
        lines = list(whole_lines(folder / TRIALS_FILE))
        told, still_open = told_to_optuna(folder)
        report = {
            "at": at,
            "of": steps,
            "killed": died == -signal.SIGKILL,
            "kept": len(kept),
            "resumed": resumed,
            "nothing_lost": lines[: len(kept)] == kept,
            "numbers": [json.loads(line)["number"] for line in lines],
            "told": told,
            "open": still_open,
            "left_over": sorted({path.name for path in folder.iterdir()} - set(files)),
        }
        print(json.dumps(report), flush=True)
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
