"""The options of `optimize` that are fields of a run's configuration, each declared once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from loadgen.errors import BadInput
from loadgen.options.declare import check_values, latency_limits, option, option_fields
from loadgen.spec.addresses import plain_address
from loadgen.spec.limits import LatencyLimit
from loadgen.spec.plan import SharedMemory
from loadgen.spec.units import memory_bytes, shapes_from_texts
from model_repo.spec import ServerKind
from optimizer import space_options
from optimizer.accuracy.thresholds import AccuracyRule, accuracy_rule
from optimizer.model.graph_inputs import InputType, input_types_from_texts
from optimizer.model_source import repository_from_text, source_beside, source_from_text
from optimizer.precision.names import CalibrationMethod, IoPrecision, Precision, precisions_from_text
from search.choices import LARGEST_BATCH, ObjectiveName, Term
from search.knobs import KNOBS

STORAGE_VARIABLE = "TRITUNE_STORAGE"
SERVER_URL_VARIABLE = "TRITUNE_SERVER_URL"


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def kept(text: str, metavar: str | None = None, *, unit: str | None = None, **rest: Any) -> Any:
    """Return a dataclass field that declares an option of a run's configuration; see `option`.

    The command that repeats the run shows its value, unless `show` is None.
    """
    shown = _plain if unit is None else f"{{:g}}{unit}".format
    return option(text, metavar, unit=unit, absolute=True, **{"show": shown, **rest})


MODEL, TRAFFIC, LIMIT, SEARCH, SERVER, RUN = (
    partial(kept, panel=panel) for panel in ("Model", "Traffic", "Limit", "Search", "Server", "Run")
)
MONEY = partial(kept, panel="Money", may_change=True)
"""Declare an option in a panel of `optimize --help`."""

NUMBERS = partial(SEARCH, metavar="N1,N2|A:B", show=space_options.numbers_text)
NAMES = partial(MODEL, metavar="A,B", parse=space_options.names_from_text, show=",".join)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizeConfig:
    """The checked settings of one run. Durations are in seconds or ms as named, rates in requests per second.

    Raises BadInput for a value that an option refuses.
    """

    __pydantic_config__: ClassVar[Mapping[str, object]] = {"extra": "forbid", "allow_inf_nan": False}

    model: str | Path = MODEL(
        "An ONNX file, a PyTorch ExportedProgram (`.pt2`), or `package.module:factory`, a callable that "
        "returns a PyTorch module and example inputs.",
        "MODEL",
        default=...,
        parse=source_from_text,
        beside=source_beside,
        common=True,
    )
    repository: Path | None = MODEL(
        "Your own model repository, with any backend; --model is then a model's name in it. It stays as it is.",
        "DIR",
        parse=repository_from_text,
        beside=lambda folder, text: text and str(folder / text),
        common=True,
    )
    follow_links: bool = MODEL("With --repository: read what links out of it lead to, too.", default=False)
    model_config_name: str | None = MODEL("With --repository: use `configs/NAME.pbtxt`, as Triton does.", "NAME")
    vary: tuple[tuple[str, tuple[str, ...]], ...] = MODEL(
        "With --repository: parameters of the backend to try, such as `parameters.intra_op_threads=1,2,4`, or a "
        "field, such as `instance_group.1.count=1,2`. Repeatable.",
        "KEY=V1,V2",
        default=(),
        parse=space_options.vary_from_texts,
        show=lambda vary: [f"{key}={','.join(values)}" for key, values in vary],
    )
    calls: tuple[str, ...] | None = NAMES("With --repository: models that it, or a member, calls, tuned with it.")
    tune: tuple[str, ...] | None = NAMES(
        "With --repository: members of an ensemble, or models of --calls or --with-model, to tune; the others "
        "stay. Default: all but those of --with-model."
    )
    with_models: tuple[space_options.WithModel, ...] = MODEL(
        "With --repository: another model of the server, which gets a load meanwhile and has to keep limits of "
        "its own, as in `other:p99=20ms,rate=900`. Repeatable. It stays as it is, unless --tune names it.",
        "NAME:K=V,..",
        default=(),
        name="with_model",
        parse=space_options.with_models_from_texts,
        show=lambda models: [one.text for one in models],
    )
    shapes: dict[str, tuple[int, ...]] = MODEL(
        "Sizes of an input's dimensions without the batch, such as `input_ids:128`. Repeatable.",
        "NAME:D1,D2",
        default=(),
        name="shape",
        parse=shapes_from_texts,
        show=lambda shapes: [f"{name}:{','.join(map(str, sizes))}" for name, sizes in shapes.items()],
        common=True,
    )
    input_types: dict[str, InputType] = MODEL(
        "Type in requests of an fp32 input: `uint8` or `fp16`; `uint8:0.0039,0` has scale and offset. Repeatable.",
        "NAME:TYPE",
        default=(),
        name="input_type",
        parse=input_types_from_texts,
        show=lambda types: [f"{name}:{one.text}" for name, one in types.items()],
    )
    input_data: Path | None = MODEL(
        "Real inputs for the load: .npz, .json, a folder with a file per input, or request lengths as .txt.",
        "FILE",
        exists=True,
        or_folder=True,
        common=True,
    )
    arrivals: str = TRAFFIC(
        "Arrivals of requests: `poisson` (independent users), `constant`, or `gamma:cv=2` (bursts).",
        "KIND",
        default="poisson",
    )
    trace: Path | None = TRAFFIC(
        "Recorded arrivals, one time in seconds per line; played faster or slower for each rate.",
        "FILE",
        exists=True,
    )
    client_batch: int = TRAFFIC(
        "Client batch size: batch items per request.", "N", default=1, bounds=(1, LARGEST_BATCH)
    )
    protocol: Literal["auto", "http", "grpc"] = TRAFFIC(
        "Protocol of the requests: `http`, `grpc` or `auto`, which measures both before the trials and takes gRPC "
        "if it lets more through, else HTTP; HTTP for a remote server.",
        "NAME",
        default="auto",
    )
    shared_memory: SharedMemory = TRAFFIC(
        "`system`: clients on the server's machine leave inputs in /dev/shm, and requests refer to them.",
        "KIND",
        default="none",
    )
    precisions: tuple[Precision, ...] | None = MODEL(
        "Precisions to try, of fp32, tf32, fp16, bf16, int8 and fp8. Default: fp32 on a CPU, fp32,tf32,fp16 on a "
        "GPU, with bf16 if fp16 is not usable.",
        "P1,P2",
        parse=precisions_from_text,
        show=",".join,
        common=True,
    )
    calibration_data: Path | None = MODEL(
        "Typical inputs for int8 and fp8: an .npz with an array per input, or a folder of INPUT.npy.", "PATH"
    )
    calibration_method: CalibrationMethod = MODEL(
        "Ranges for int8 and fp8: `percentile`, or `entropy`, which clips more.", "METHOD", default="percentile"
    )
    accuracy: AccuracyRule = MODEL(
        "Accuracy that a precision must reach, compared with fp32: `strict`, `standard` or `off`, and changes "
        "such as `strict,sqnr_db=30`.",
        "LEVEL",
        default="strict",
        parse=accuracy_rule,
        show=lambda rule: ",".join([rule.level, *(f"{name}={value:g}" for name, value in rule.changes)]),
    )
    io_precision: IoPrecision = MODEL(
        "`keep`, or `fp16` for fp16 inputs and outputs of engines that compute in fp16.", "TYPE", default="keep"
    )
    limits: tuple[LatencyLimit, ...] = latency_limits("Limit")
    max_memory_bytes: int | None = LIMIT(
        "Memory that the server may take with the model, such as `8GiB`.",
        "SIZE",
        name="max_memory",
        parse=partial(memory_bytes, option="--max-memory"),
        show=lambda size: f"{size / 2**20:.15g}MiB",
        positive=True,
    )
    confidence: float = LIMIT("Confidence of the certified rate, 0.8 to 0.999.", default=0.95, bounds=(0.8, 0.999))
    objective: ObjectiveName = LIMIT(
        "The best within the limits is: `cost` (with --rate, the fewest replicas), `latency` (the lowest while "
        "one replica answers --rate) or `energy` (the GPUs' least per inference).",
        "WHAT",
        default="cost",
    )
    pareto: bool = LIMIT(
        "Keep and show the frontier of rate and latency of all trials.", default=False, may_change=True
    )
    max_batch_sizes: tuple[int, ...] | None = NUMBERS(
        "Values of max_batch_size to try: `1,8,32`; with --repository the largest (default: the model's own).",
        name="max_batch_size",
        parse=space_options.BATCHES,
        common=True,
    )
    instance_counts: tuple[int, ...] | None = NUMBERS(
        "The numbers of instances to try, such as `1:4`.",
        name="instances",
        parse=space_options.INSTANCES,
        common=True,
    )
    intra_op_threads: tuple[int, ...] | None = NUMBERS(
        "The threads of each instance to try on a CPU (ONNX Runtime's intra-op threads); 0: one per core.",
        name="threads",
        parse=space_options.THREADS,
    )
    queue_delays_us: tuple[int, ...] | None = SEARCH(
        "The values of max_queue_delay to try, such as `0,2ms`. Without 0, all that are tried batch.",
        "D1,D2",
        name="queue_delay",
        parse=space_options.delays_from_text,
        show=KNOBS["max_queue_delay_us"].listed,
    )
    excluded: tuple[tuple[str, str], ...] = SEARCH(
        "A value that is not tried, named as --dry-run shows it: `engine=tensorrt-fp16`, `instance_count=4`. "
        "Repeatable.",
        "KNOB=VALUE",
        default=(),
        name="exclude",
        parse=space_options.excluded_from_texts,
        show=lambda excluded: [f"{knob}={value}" for knob, value in excluded],
    )
    start_from: Path | None = SEARCH(
        "Your config.pbtxt: trial 1, a second baseline. Its batch size, instances, threads and batcher count.",
        "FILE",
        exists=True,
        common=True,
    )
    server: ServerKind = SERVER(
        "`embedded` (the server of the `embedded` extra), `local` (tritonserver on PATH), `docker` (NVIDIA's "
        "image) or `remote` (a running server).",
        "KIND",
        default="embedded",
        common=True,
    )
    server_url: str | None = SERVER(
        "Address of the remote server.", "URL", show=plain_address, may_change=True, variable=SERVER_URL_VARIABLE
    )
    server_repository: Path | None = SERVER("The remote server's model repository, as a folder here.", "DIR")
    yes: bool = SERVER(
        "Let a remote server's own models get other configurations.", default=False, show=None, may_change=True
    )
    header_env: tuple[str, ...] = SERVER(
        "Header for the remote server whose value is in the environment: `NAME=VARIABLE`. Repeatable.",
        "NAME=VARIABLE",
        default=(),
        show=None,
        may_change=True,
    )
    wait_ready_s: float | None = SERVER(
        "Wait until the remote server answers, up to this long. Default: it must answer now.",
        "DURATION",
        unit="s",
        show=None,
        may_change=True,
    )
    server_port: int | None = SERVER(
        "Port of the server that is started, for the protocol of the run. Default: a free one.",
        bounds=(1, 65535),
        show=None,
        may_change=True,
    )
    docker_image: str | None = SERVER("Image for `--server docker`.", "IMAGE")
    price_per_hour_usd: float | None = MONEY(
        "Price of this machine per hour, in USD.", "USD", name="price_per_hour", positive=True
    )
    price_file: Path | None = MONEY("Prices to use instead of the packaged ones.", "FILE", exists=True)
    price_term: Term = MONEY(
        "Terms of the machine's price: `on-demand`, `spot`, `1-year` or `3-year`.", "TERM", default="on-demand"
    )
    rate_to_serve_per_s: float | None = MONEY(
        "Traffic to serve, in requests per second: the recommendation then has a number of replicas.",
        "PER_S",
        name="rate",
        positive=True,
        common=True,
    )
    peak_rate_per_s: float | None = MONEY(
        "Peak traffic, in requests per second: the bundle's autoscaler scales up to it.",
        "PER_S",
        name="peak_rate",
        positive=True,
    )
    output: Path = RUN(
        "Directory for the run's files. Default: runs/MODEL-TIME.", "DIR", default=..., show=None, common=True
    )
    cache_dir: Path | None = RUN(
        "Directory for engines and other results that later runs use. Default: ~/.cache/tritune.",
        "DIR",
        show=None,
        may_change=True,
    )
    time_budget_s: float = RUN(
        "Wall time for the whole run.",
        "DURATION",
        default="10m",
        unit="s",
        always=True,
        may_change=True,
        common=True,
    )
    most_send_lag_ms: float | None = RUN(
        "Highest p99 of the send lag with which a measurement counts. Default: 1ms, or 5 % of the limit.",
        "DURATION",
        name="max_send_lag",
        unit="ms",
    )
    despite_noise: bool = RUN(
        "Measure even if processors stall for longer than the limit, or the first minute measures nothing.",
        default=False,
        may_change=True,
    )
    ignore_slow_phases: bool = RUN(
        "Certify a rate for the machine's usual speed: for tuning on a shared and serving on a quiet one.",
        default=False,
        may_change=True,
    )
    storage: str | None = RUN(
        "Optuna storage URL, such as `postgresql://HOST/DATABASE`. Default: a file in the run's directory.",
        "URL",
        show=None,
        may_change=True,
        variable=STORAGE_VARIABLE,
    )
    study: str | None = RUN(
        "Name of the study in the storage, for its workers. Default: after the run's directory.", "NAME", show=None
    )
    gpu: str | None = RUN("Part of the name of the GPUs to use, such as `L4`. Default: all.", "NAME", show=None)
    workers: str = RUN(
        "`auto`: measure on each GPU of this machine at the same time; N: on N of them; 1: one server on all.",
        "N",
        default="1",
        show=None,
        may_change=True,
    )
    seed: int = RUN("Seed of all random choices.", default=0, bounds=(0, 2**31), always=True)
    origins: dict[str, str] = field(default_factory=dict)
    """The origin of each option's value: its flag, its variable, its file with the line, or `default`."""

    def __post_init__(self) -> None:
        if not self.limits:
            raise BadInput("No latency limit was given.", "Add --p99, for example --p99 50ms")
        check_values(self)


KEPT = option_fields(OptimizeConfig)
