"""The types of the options that calls take, for type checkers and editors.

Written by tests/golden/test_python_options.py from the declarations; docs/cli.md explains each option.
"""

from __future__ import annotations

from os import PathLike
from typing import Literal, TypedDict

Duration = str | float
"""Such as "5m"; a number is in the unit that the option's help names."""

File = str | PathLike[str]
Numbers = str | int | list[int] | tuple[int, ...] | range
Texts = str | list[str] | tuple[str, ...]


class OptimizeOptions(TypedDict, total=False):
    """Options of `tritune.optimize`."""

    repository: File
    follow_links: bool
    model_config_name: str
    vary: Texts
    calls: Texts
    tune: Texts
    with_model: Texts
    shape: Texts
    input_type: Texts
    input_data: File
    arrivals: str
    trace: File
    client_batch: int
    protocol: Literal["auto", "http", "grpc"]
    shared_memory: Literal["none", "system"]
    precisions: Texts
    calibration_data: File
    calibration_method: Literal["percentile", "entropy"]
    accuracy: str
    io_precision: Literal["keep", "fp16"]
    p999: Duration
    p95: Duration
    p90: Duration
    p50: Duration
    max_memory: str | float
    confidence: float
    objective: Literal["cost", "latency", "energy"]
    pareto: bool
    max_batch_size: Numbers
    instances: Numbers
    threads: Numbers
    queue_delay: Numbers
    exclude: Texts
    start_from: File
    server: Literal["embedded", "local", "docker", "remote"]
    server_url: str
    server_repository: File
    yes: bool
    header_env: Texts
    wait_ready: Duration
    server_port: int
    docker_image: str
    price_per_hour: float
    price_file: File
    price_term: Literal["on-demand", "spot", "1-year", "3-year"]
    rate: float
    peak_rate: float
    output: File
    cache_dir: File
    time_budget: Duration
    max_send_lag: Duration
    despite_noise: bool
    ignore_slow_phases: bool
    storage: str
    study: str
    gpu: str
    workers: str | int
    seed: int
    resume: File
    baseline: File
    accept_provisional: bool
    events: File


class LoadtestOptions(TypedDict, total=False):
    """Options of `tritune.loadtest`."""

    model_version: str
    arrivals: str
    trace: File
    duration: Duration
    warmup: Duration
    max_in_flight: int
    refuse_above: int
    concurrency: int
    timeout: Duration
    max_send_lag: Duration
    processes: int
    seed: int
    p999: Duration
    p95: Duration
    p90: Duration
    p50: Duration
    max_errors: str | float
    confidence: float
    find_max: bool
    accept_observed: bool
    fail_fast: bool
    compare: File
    input_data: File
    shape: Texts
    batch_size: int
    shared_memory: Literal["none", "system"]
    ask_output: Texts
    format: Literal["binary", "json"]
    api: Literal["openai-chat", "openai-completions"]
    prompts: File
    prompt_tokens: int
    output_tokens: int
    allow_short: bool
    ttft_p50: Duration
    ttft_p90: Duration
    ttft_p95: Duration
    ttft_p99: Duration
    tpot_p50: Duration
    tpot_p90: Duration
    tpot_p95: Duration
    tpot_p99: Duration
    e2e_p50: Duration
    e2e_p90: Duration
    e2e_p95: Duration
    e2e_p99: Duration
    attainment: str | float
    header: Texts
    header_env: Texts
    ca_cert: File
    client_cert: File
    client_key: File
    server_name: str
    wait_ready: Duration
    insecure: bool
    yes: bool
    output: File
    html: File
    csv: File
    junit: File
    keep_log: File
    web: bool
    web_port: int
