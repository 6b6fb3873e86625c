"""The options of `optimize`, its workers and servers that are no part of a run's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from loadgen.options.declare import option, option_fields
from optimizer.config import KEPT, STORAGE_VARIABLE

CALL = partial(option, panel="Run")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """The options that are no part of a run's configuration."""

    resume: Path | None = CALL(
        "Go on with an earlier run's directory. Time budget, price, rates and `--workers` may change; options "
        "that its trials depend on may not.",
        "DIR",
        flag_only=True,
        common=True,
    )
    baseline: Path | None = CALL(
        "Directory of an earlier run: the exit code is 97 if this one is worse by more than noise.", "RUN_DIR"
    )
    accept_provisional: bool = CALL(
        "End with 0 also if a rate was certified once and not again on a restarted server.", default=False
    )
    dry_run: bool = CALL("Print the plan and start nothing; with --json as JSON.", default=False, common=True)
    json: bool = CALL(
        "Print only recommendation.json on stdout, whatever the outcome.", default=False, common=True
    )
    config: Path | None = CALL(
        "A YAML file of options, such as `time_budget: 20m`. Flags and variables TRITUNE_OPTIMIZE_... go first.",
        "FILE",
        flag_only=True,
    )
    events: Path | None = CALL(
        "Append every event of the run to this file as it happens, one JSON line each.", "FILE", absolute=True
    )
    quiet: bool = CALL("Print the answer alone: no progress and no notes.", default=False, letter="-q")
    verbose: bool = CALL("Print the lines of optimize.log on stderr, too.", default=False, letter="-v")
    print_completion: Literal["bash", "zsh"] | None = option(
        "Print a script that completes options in `bash` or `zsh`: `source <(optimize --print-completion bash)`.",
        "SHELL",
        flag_only=True,
        alone=True,
    )
    debug: bool = CALL("Show tracebacks.", default=False, flag_only=True)
    version: bool = option("Print the version and leave.", default=False, flag_only=True, alone=True)


OF_THIS_CALL = option_fields(CallOptions)
OPTIONS = {**KEPT, **OF_THIS_CALL}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCall:
    """The options of one `optimize worker` that are no part of a configuration, or mean something else there."""

    study: str = option("The study's name, as the search prints it.", "NAME", default=...)
    storage: str = option(
        "The search's storage, such as `postgresql://HOST/DATABASE`.",
        "URL",
        default=...,
        variable=STORAGE_VARIABLE,
    )
    output: Path = option(
        "Directory for this worker's files. Default: runs/worker-STUDY-TIME.", "DIR", default=..., absolute=True
    )
    idle_s: float = option("Time without work after which the worker leaves.", "DURATION", default="10m", unit="s")
    debug: bool = option("Show tracebacks.", default=False)


WORKER_CONFIG = ("model", "input_data", "calibration_data", "trace", "server", "docker_image", "cache_dir", "gpu")
"""Options of a search that its workers are given as well: code, images and files come from their own alone."""

OF_A_WORKER = {**{name: KEPT[name] for name in (*WORKER_CONFIG, "workers")}, **option_fields(WorkerCall)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """The options of `optimize serve`."""

    run: Path = option("Output directory of a run, or a model repository.", "DIR", default=..., argument=True)
    server: Literal["embedded", "local", "docker"] = option(
        "`embedded`, `local` or `docker`.", "KIND", default="embedded"
    )
    port: int | None = option("HTTP port. Default: a free one.", bounds=(1, 65535))
    grpc_port: int | None = option("gRPC port. Default: a free one.", bounds=(1, 65535))
    shared_memory: Literal["none", "system"] = option(
        "`system`: takes inputs in /dev/shm from this user's `loadtest`.", "KIND", default="none"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOptions:
    """The options of `optimize profile`."""

    run: Path = option("Output directory of a run.", "RUN_DIR", default=..., argument=True)
    timeline: Path | None = option(
        "The trace file; a page of its sums is written next to it. Default: timeline.json in the run's directory.",
        "FILE",
        absolute=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscaleOptions:
    """The options of `optimize autoscale`."""

    run: Path = option("Output directory of a run.", "RUN_DIR", default=..., argument=True)
    traffic: str = option(
        "A file of `time,rate` lines (seconds, requests/s from then on), one of Azure's traces of functions, or "
        "`diurnal:PEAK`, a day that goes from a fifth of the peak up to it and back.",
        "FILE",
        default=...,
    )
    replica_start_s: float | None = option(
        "Time until a new replica is ready, with its image and node. Default: the server's start, as measured.",
        "DURATION",
        unit="s",
    )
    min_replicas: int | None = option(
        "The fewest replicas. Default: the cheapest number, and 2 at least.", "N", bounds=(1, 1_000)
    )
    max_replicas: int | None = option(
        "The most replicas. Default: twice what the peak needs, and 100 at most.", "N", bounds=(1, 1_000)
    )
    json: bool = option("Print autoscale.json on stdout.", default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreOptions:
    """The options of `optimize restore`."""

    server_url: str | None = option("The server to restore. Default: all that a run has left.", "URL")
    header_env: tuple[str, ...] = option(
        "Header for the server of --server-url whose value is in the environment: `NAME=VARIABLE`. Repeatable.",
        "NAME=VARIABLE",
        default=(),
    )
    cache_dir: Path | None = option("The --cache-dir of the run.", "DIR")
