"""Fuzzing with Hypothesis: a check is called with drawn examples for a number of seconds.

`TRITUNE_FUZZ_S` sets the seconds of each target, 15 unless set. An example that fails is shrunk, printed, and kept
in `.hypothesis/`, so that the next run of the same check begins with it.
"""

import functools
import os
import time
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.strategies import SearchStrategy

SECONDS = float(os.environ.get("TRITUNE_FUZZ_S", "15"))
ROUND = 50
"""Examples per run of Hypothesis. The clock is read after each run, so there is always one run."""

SLACK_S = 300.0
"""pytest ends a target that takes so much longer than its seconds: for its last round, and shrinking."""


def fuzz(
    check: Callable[..., object],
    *strategies: SearchStrategy[Any],
    seconds: float = SECONDS,
    examples: int = ROUND,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Call `check` with examples of the strategies until the seconds are over; returns how often it was called.

    `check` is a Python function; built-in ones do not name their parameters. An error in it ends the fuzzing, with
    the smallest example that raises it in the message. `examples` is the number of examples per round: fewer for a
    check that takes long. `clock` gives seconds, and is read once before the first round and once after each.
    """
    calls = 0

    @functools.wraps(check)  # Hypothesis keeps failed examples under the check's source
    def counted(*args: Any, **kwargs: Any) -> None:
        nonlocal calls
        calls += 1
        check(*args, **kwargs)

    one_round = settings(
        max_examples=examples,
        derandomize=False,  # in CI Hypothesis would draw the same examples each time, and keep none
        database=DirectoryBasedExampleDatabase(".hypothesis/examples"),
        deadline=None,
        print_blob=True,
        phases=[Phase.reuse, Phase.generate, Phase.target, Phase.shrink],  # no explanations: they trace every line
        suppress_health_check=list(HealthCheck),  # large examples break parsers
    )(given(*strategies)(counted))
    ends = clock() + seconds
    while True:
        one_round()
        if clock() >= ends:
            return calls
