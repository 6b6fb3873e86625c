"""The options of `loadtest`, each declared once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from loadgen.options.declare import latency_limits, option, stream_limits
from loadgen.spec.limits import LatencyLimit, StreamLimit
from loadgen.spec.plan import SharedMemory, StreamApi, TensorFormat
from loadgen.spec.units import shapes_from_texts, share_from_text

LOAD, LIMITS, INPUTS, STREAMS, CONNECTION, OUTPUT, MACHINES = (
    partial(option, panel=panel)
    for panel in ("Load", "Limits", "Inputs", "Streams of tokens", "Connection", "Output", "Many machines")
)
"""Declare an option in a panel of `loadtest --help`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTestOptions:
    """The options of one `loadtest`, read and checked one by one. Raises BadInput for a value that cannot be."""

    url: str | None = option(
        "The server: `http://`, `https://`, `grpc://` or `grpcs://`, host and port.", argument=True, common=True
    )
    model: str | None = option("The model to load.", "NAME", common=True)
    model_version: str = option("Its version. Default: the server chooses.", "VERSION", default="")
    rate: float | None = LOAD("Requests per second, open loop.", "PER_S", common=True)
    arrivals: str | None = LOAD(
        "`poisson` (the default), `constant`, `gamma:cv=2`, `ramp:from=0.5,to=2`, `steps:0.5,1,1.5` or "
        "`spike:level=3,start=0.4,end=0.5`; levels are multiples of the rate, start and end parts of the "
        "duration.",
        "KIND",
    )
    trace: Path | None = LOAD("Replay a file: one time in seconds per line, or `time,rate`.", "FILE", exists=True)
    duration_s: float | None = LOAD(
        "Duration of the measurement. Default: 30s, a whole trace, 2m of load for --find-max, or with --api as "
        "long as its limits need.",
        "DURATION",
        unit="s",
        common=True,
    )
    warmup_s: float | None = LOAD(
        "Load that is sent first and not counted. Default: 1s, or three limits if that is longer.",
        "DURATION",
        unit="s",
        zero=True,
    )
    max_in_flight: int | None = LOAD(
        "Hold due requests back while this many are unanswered. Their wait counts.", "N"
    )
    refuse_above: int | None = LOAD(
        "Refuse due requests while this many are unanswered, as a gateway with such a limit would. They count as "
        "failed.",
        "N",
    )
    concurrency: int | None = LOAD(
        "CLOSED LOOP instead of a rate: this many users, who wait for each response. Its p99 is not that of "
        "independent users.",
        "N",
    )
    timeout_s: float | None = LOAD(
        "Time after which a request has failed, counted from its due time. Default: 10s, or twice "
        "the longest limit if that is longer (with --api four times, and 60s without a limit).",
        "DURATION",
        unit="s",
    )
    most_send_lag_ms: float | None = LOAD(
        "Highest p99 of the send lag; above it the client was measured, not the server. Default: 1ms, or 5 % of "
        "the strictest limit. Latency counts from the due time in any case.",
        "DURATION",
        name="max_send_lag",
        unit="ms",
    )
    processes: int = LOAD("Load processes; one per core.", "N", default=1, bounds=(1, 1024))
    seed: int = LOAD("Seed of the arrivals and of generated inputs.", default=0)
    limits: tuple[LatencyLimit, ...] = latency_limits("Limits")
    max_error_ratio: float | None = LIMITS(
        "Share of requests that may fail, such as `0.1%`. Without it failures still count as too late.",
        "PERCENT",
        name="max_errors",
        parse=partial(share_from_text, option="--max-errors"),
        common=True,
    )
    confidence: float = LIMITS("Confidence of every verdict.", "SHARE", default=0.95)
    find_max: bool = LIMITS("Search for the highest rate that meets the limits.", default=False, common=True)
    accept_observed: bool = LIMITS(
        "End with 0 also if this run met every limit, but was too short to show that they hold beyond it.",
        default=False,
    )
    fail_fast: bool = LIMITS("Stop once a limit is certainly violated.", default=False)
    compare: Path | None = LIMITS(
        "An earlier run's --output: fail if p99, or the highest rate, is worse by more than noise.",
        "FILE",
        exists=True,
        common=True,
    )
    input_data: Path | None = INPUTS(
        "Samples to send in turn, .npz or .json, a folder with a file per input, or lengths as .txt. "
        "Default: generated from the metadata.",
        "FILE",
        exists=True,
        or_folder=True,
        common=True,
    )
    shapes: dict[str, tuple[int, ...]] = INPUTS(
        "Sizes of an input's free dimensions, without the batch: `input_ids:128`. Repeatable.",
        "NAME:D1,D2",
        name="shape",
        parse=shapes_from_texts,
        default=(),
        common=True,
    )
    batch_size: int = INPUTS("Samples in each request.", "N", default=1, common=True)
    shared_memory: SharedMemory = INPUTS(
        "`system`: inputs wait in /dev/shm, and requests refer to them. For a server on this machine.",
        "KIND",
        default="none",
    )
    ask_output: tuple[str, ...] = INPUTS("An output to ask for. Repeatable. Default: all.", "NAME", default=())
    format: TensorFormat = INPUTS(
        "`binary`, or `json` for HTTP servers that take no binary tensors: requests and answers are JSON alone.",
        "KIND",
        default="binary",
    )
    api: StreamApi | None = STREAMS(
        "Load an endpoint that streams tokens, such as http://HOST/v1: `openai-chat` or `openai-completions`.",
        "KIND",
        common=True,
    )
    prompts: Path | None = STREAMS(
        'A prompt per line, or an object per line with its "prompt" in .jsonl. Each gets a mark of its own at its '
        "beginning, so that no prefix cache knows it.",
        "FILE",
        exists=True,
    )
    prompt_tokens: int | None = STREAMS(
        "Generate prompts of N words (about one token each).", "N", bounds=(1, 1_000_000), common=True
    )
    output_tokens: int | None = STREAMS(
        "Tokens to ask for. A reply of fewer is not good.", "N", bounds=(1, 1_000_000), common=True
    )
    allow_short: bool = STREAMS(
        "Let the model stop by itself. Without it, requests have `ignore_eos`, which not all servers take.",
        default=False,
    )
    stream_limits: tuple[StreamLimit, ...] = stream_limits("Streams of tokens")
    attainment: float | None = STREAMS(
        "Share of requests that must meet all these limits at once, such as `95%`; "
        "--find-max searches for the highest rate at which that holds.",
        "PERCENT",
        parse=partial(share_from_text, option="--attainment", usual="95%"),
    )
    header: tuple[str, ...] = CONNECTION(
        "A header, `Name: value`. Repeatable. Other users of this machine can read command lines: use "
        "--header-env for secrets.",
        "HEADER",
        default=(),
    )
    header_env: tuple[str, ...] = CONNECTION(
        "A header with its value in an environment variable. Never printed or written. Repeatable.",
        "NAME=VARIABLE",
        default=(),
    )
    ca_cert: Path | None = CONNECTION(
        "PEM file of the authority to trust instead of the system's.", "FILE", exists=True
    )
    client_cert: Path | None = CONNECTION(
        "PEM file of a client certificate, for a server that asks for one (mutual TLS). With several machines "
        "each worker has its own.",
        "FILE",
        exists=True,
    )
    client_key: Path | None = CONNECTION(
        "PEM file of its key, without a password. Default: the key is in the certificate's file.",
        "FILE",
        exists=True,
    )
    server_name: str | None = CONNECTION(
        "The server's name in its certificate and for SNI, if the address is another one.", "NAME"
    )
    wait_ready_s: float | None = CONNECTION(
        "Wait until the server answers an inference, up to this long; the load begins then. Default: it must "
        "answer now, within three tries.",
        "DURATION",
        unit="s",
    )
    insecure: bool = CONNECTION("Do NOT check the server's certificate.", default=False, flag_only=True)
    yes: bool = CONNECTION(
        "Confirm that you may load this server: needed if it is not this machine.",
        default=False,
        flag_only=True,
        common=True,
    )
    json: bool = OUTPUT("Print only the JSON record on stdout.", default=False, common=True)
    output: Path | None = OUTPUT("Write the JSON record, also for a later --compare.", "FILE", common=True)
    html: Path | None = OUTPUT("Write a page with plots, in one file.", "FILE", common=True)
    csv: Path | None = OUTPUT(
        "Write PREFIX_stats.csv, PREFIX_stats_history.csv and PREFIX_failures.csv, as Locust does.", "PREFIX"
    )
    junit: Path | None = OUTPUT("Write JUnit XML, one case per limit.", "FILE")
    keep_log: Path | None = OUTPUT(
        "Keep the times of every request in this folder, as NumPy files of 25 bytes per request.",
        "FOLDER",
    )
    web: bool = OUTPUT("Locust's web UI on http://127.0.0.1:8089 while the load runs.", default=False)
    web_port: int = OUTPUT("Another port for it.", "PORT", default=8089)
    config: Path | None = OUTPUT(
        "A YAML file of options, such as `max_errors: 1%`. Flags and variables TRITUNE_LOADTEST_... go first.",
        "FILE",
        flag_only=True,
    )
    quiet: bool = OUTPUT("Print the result alone: no progress and no notes.", default=False, letter="-q")
    verbose: bool = OUTPUT("Print a line of figures every second.", default=False, letter="-v")
    debug: bool = OUTPUT("Show tracebacks.", default=False, flag_only=True)
    master: bool = MACHINES("Let workers on other machines send the load.", default=False)
    expect_workers: int = MACHINES("Number of workers to wait for; they share the load.", "N", default=1)
    worker: str | None = MACHINES(
        "Be a worker for the master on that host. Takes --port, --processes, --yes, and the server's address "
        "with --header, --header-env, --client-cert and --client-key, which it uses nowhere else; the rest comes "
        "from the master.",
        "HOST",
        flag_only=True,
        alone=True,
    )
    port: int = MACHINES("The port of the master.", "PORT", default=5557)
    bind: str = MACHINES(
        "The address on which the master listens, `*` for all. Any that other machines can reach needs "
        "TRITUNE_CLUSTER_SECRET, the same for the master and its workers.",
        "ADDRESS",
        default="127.0.0.1",
    )
    print_completion: Literal["bash", "zsh"] | None = option(
        "Print a script that completes options in `bash` or `zsh`: `source <(loadtest --print-completion bash)`.",
        "SHELL",
        flag_only=True,
        alone=True,
    )
    version: bool = option("Print the version and leave.", default=False, flag_only=True, alone=True)
