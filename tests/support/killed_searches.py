"""Searches that die at their k-th write and go on; run by `test_kills_truth`, with kill_at_write.c preloaded.

    python killed_searches.py SHIM FOLDER KILLS

Every search is a fork of this process, so that nothing has to be imported a hundred times. Prints a line of JSON
for each kill.
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
from dataclasses import dataclass
from pathlib import Path

from simulated_bench import BudgetOfLoad, SimulatedBench
from spaces import two_core_space

from loadgen.files import write_atomically
from model_repo.spec import ServingConfig
from search.files import whole_lines
from search.ledger import STUDY_FILE, TRIALS_FILE, open_ledger
from search.records import Slo
from search.sampling import Sampling
from search.study import Search
from search.trial import Trial

TRIALS_BEFORE = 5
TRIALS_IN_ALL = 7
STATES = ("complete", "pruned", "infeasible", "failed")
RESULT = "recommendation.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuickSearch(Search):
    """Its trials are of one short load run, so that a hundred searches take a minute; all that is kept is kept as
    ever."""

    def evaluated(self, config: ServingConfig, number: int, *, most_s: float = 0.0) -> Trial | None:
        self.bench.load(config)
        self.bench.measure(20.0, 0.5, number)
        state = STATES[number % len(STATES)]
        rate = {"complete": 100.0 + number, "pruned": 50.0, "infeasible": 0.0}.get(state)
        seen = self.bench.last_measurement()
        return Trial(
            number=number, config=config, state=state, reason=state, rate_at_limit_per_s=rate, measurement=seen
        )


def search(folder: Path, trials: int, bench: SimulatedBench | None = None) -> None:
    """Go on with the search in `folder` until it has so many trials, and write an answer."""
    space, bench = two_core_space(folder), bench or SimulatedBench()
    ledger = open_ledger(space, folder, storage=None, seed=1)
    running = QuickSearch(
        ledger=ledger,
        bench=bench,
        slo=Slo(limit_ms=50.0),
        budget=BudgetOfLoad(total_s=1e6, spent=bench.spent),
        seed=1,
        stop=lambda: len(ledger.trials) >= trials,
    )
    Sampling(running).run()
    write_atomically(folder / RESULT, json.dumps({"trials": len(ledger.trials)}))
    ledger.storage.close()


def forked(work: Callable[[], object]) -> int:
    """The exit status of a child that does it; minus the signal that ended it."""
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
    """(trial's number, Optuna's state, value) of what was told, by number; and how many trials are open."""
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
    search(template, TRIALS_BEFORE)  # here, so that the forks find everything imported and compiled
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
        resumed = forked(lambda folder=folder: search(folder, TRIALS_IN_ALL))
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
