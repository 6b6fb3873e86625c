"""All options of `optimize`: those that make a run's configuration, and those of one call."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from loadgen.options.declare import option, option_fields
from optimizer.config import OptimizeConfig

RUN = partial(option, panel="Run")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """The options that are no part of a run's configuration."""

    resume: Path | None = RUN(
        "Go on with an earlier run's directory. Time budget, price, rates and `--workers` may change; options "
        "that its trials depend on may not.",
        "DIR",
        flag_only=True,
    )
    baseline: Path | None = RUN(
        "Directory of an earlier run: the exit code is 97 if this one is worse by more than noise.", "RUN_DIR"
    )
    accept_provisional: bool = RUN(
        "End with 0 also if a rate was certified once and not again on a restarted server.", default=False
    )
    dry_run: bool = RUN("Print the plan and start nothing.", default=False)
    json: bool = RUN("Print only recommendation.json on stdout, whatever the outcome.", default=False)
    config: Path | None = RUN(
        "A YAML file of options, such as `time_budget: 20m`. Flags and variables TRITUNE_OPTIMIZE_... go first.",
        "FILE",
        flag_only=True,
    )
    debug: bool = RUN("Show tracebacks.", default=False, flag_only=True)
    version: bool = option("Print the version and leave.", default=False, flag_only=True, alone=True)


KEPT = option_fields(OptimizeConfig)
OF_THIS_CALL = option_fields(CallOptions)
OPTIONS = {**KEPT, **OF_THIS_CALL}
