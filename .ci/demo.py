"""Run `make demo` on a terminal and check how it ended: `.venv/bin/python .ci/demo.py`.

On a slow or busy machine no rate may be certified: 96 and 98 are as good as 0 if the run recorded the reason. Any
other exit code, a traceback or a run without its `recommendation.json` is a fault, and so is a run that draws
nothing, or does not end.
"""

# ruff: noqa: T201 - it prints its result

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from terminals import Terminal  # noqa: E402 - found by the line above

from loadgen.errors import BadInput  # noqa: E402
from search.records.run_files import read_outcome  # noqa: E402

OF_A_SLOW_MACHINE = {0, 96, 98}
FAILED_MAKE = re.compile(r"make(?:\[\d+\])?: \*\*\* \[.*\bdemo\] Error (\d+)")
DRAWN_AFTER_S, MOST_S = 600.0, 1200.0
"""If nothing is drawn ten minutes after `make` began, or a demo of two minutes goes on for 20 then, it hangs."""


def fault_of(code: int, output: str, run: Path | None) -> str | None:
    """Return what is wrong with a demo that ended with this exit code and left this run; None if nothing is."""
    if "Traceback (most recent call last)" in output:
        return "a traceback"
    if code not in OF_A_SLOW_MACHINE or run is None:
        return f"exit code {code}" if run is not None else f"exit code {code}, and no new run"
    try:
        outcome = read_outcome(run)
    except BadInput as error:
        return f"exit code {code}, and {error}"
    if outcome.exit_code != code:
        return f"exit code {code}, and {outcome.exit_code} in its recommendation.json"
    return None if code == 0 or outcome.status_reason else f"exit code {code} without a recorded reason"


def main() -> int:
    """Return 0 if the demo ended as it should, 1 otherwise."""
    before = set((ROOT / "runs").glob("*"))
    with Terminal(["make", "demo"], cwd=ROOT, echo=lambda text: print(text, end="", flush=True)) as terminal:
        try:
            terminal.wait_for(lambda: terminal.pictures, most_s=DRAWN_AFTER_S)
            ended = terminal.end(most_s=MOST_S)
        except AssertionError as failure:
            print(f"\ndemo: drew nothing, or did not end: {failure}", flush=True)
            return 1
    failed = FAILED_MAKE.findall(terminal.written)
    code = 0 if ended == 0 else int(failed[-1]) if failed else ended
    new = sorted(set((ROOT / "runs").glob("*")) - before)
    fault = fault_of(code, terminal.written, new[-1] if new else None)
    print(f"demo: {fault or f'ended with {code}, as it may'}", flush=True)
    return 1 if fault else 0


if __name__ == "__main__":
    sys.exit(main())
