"""Immutable plans of a load, decided before the first request is sent, and how the command line writes them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from loadgen.errors import BadInput, PlanError

MAX_RATE_PER_S = 1_000_000.0

SharedMemory = Literal["none", "system"]
"""How inputs get to the server: with the request, or through memory that it shares with the client."""

TensorFormat = Literal["binary", "json"]
"""How tensors are written over HTTP: as raw bytes after the JSON, or as lists of numbers in it."""

StreamApi = Literal["openai-chat", "openai-completions"]
"""The APIs whose responses are streams of tokens, as server-sent events."""

ArrivalKind = Literal["poisson", "constant", "gamma", "trace", "rates", "ramp", "steps", "spike"]
ARRIVAL_KINDS: tuple[ArrivalKind, ...] = get_args(ArrivalKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """The shape of the load over time; `LoadPlan.rate_per_s` gives it its size.

    - `poisson`: independent users; `constant`: equal gaps; `gamma`: gaps with coefficient of variation `cv`
    - `ramp`: Poisson, the rate goes linearly from `levels[0]` to `levels[1]` times the plan's rate
    - `steps`: Poisson, equally long steps at `levels` times the plan's rate
    - `spike`: Poisson, `levels[0]` times the plan's rate from `start` to `end` (fractions of the duration)
    - `trace`: the recorded `times_s` from the fraction `start` of them on, round and round, at such a speed that
      their mean rate is the plan's
    - `rates`: Poisson, the rate over time in `times_s` and `levels` (requests/s from that time on), stretched
      in height so that their mean is the plan's rate
    """

    kind: ArrivalKind = "poisson"
    cv: float = 1.0
    levels: tuple[float, ...] = ()
    start: float = 0.0
    end: float = 0.0
    times_s: tuple[float, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if self.kind not in ARRIVAL_KINDS:
            raise PlanError(f"arrivals {self.kind!r} are not known.\nUse one of {', '.join(ARRIVAL_KINDS)}.")
        if self.kind == "gamma" and not 0 < self.cv <= 20:
            raise PlanError(f"gamma arrivals with cv={self.cv} cannot be drawn.\nUse 0 < cv <= 20; 1 is Poisson.")
        if self.kind in ("ramp", "steps", "spike", "rates"):
            self._check_levels()
        if self.kind == "spike" and not 0 <= self.start < self.end <= 1:
            raise PlanError(
                f"a spike from {self.start} to {self.end} of the duration is empty or outside it.\n"
                "Use 0 <= start < end <= 1."
            )
        if self.kind in ("trace", "rates"):
            self._check_times()
        if self.kind == "trace" and not 0 <= self.start < 1:
            raise PlanError(f"a trace cannot start at {self.start} of itself.\nUse 0 <= start < 1.")

    def _check_levels(self) -> None:
        needed = {"ramp": 2, "spike": 1}.get(self.kind)
        if not self.levels or (needed is not None and len(self.levels) != needed):
            raise PlanError(
                f"{self.kind} arrivals have {len(self.levels)} levels.\nGive {needed or 'one or more'} of them."
            )
        if not all(0 <= level < math.inf for level in self.levels) or max(self.levels) == 0:
            raise PlanError(
                f"{self.kind} arrivals have the levels {self.levels[:8]}.\n"
                "Levels are finite, not negative, and not all 0."
            )

    def _check_times(self) -> None:
        if len(self.times_s) < 2:
            raise PlanError(f"the trace holds {len(self.times_s)} times.\nGive at least two.")
        if not all(math.isfinite(time) for time in self.times_s):
            raise PlanError("the trace holds a time that is not a finite number.\nGive seconds, one per line.")
        for line, (before, after) in enumerate(zip(self.times_s, self.times_s[1:], strict=False), start=2):
            if after < before:
                raise PlanError(
                    f"the times of the trace decrease at entry {line}: {after} after {before}.\n"
                    "Sort the trace by time."
                )
        if self.times_s[-1] == self.times_s[0]:
            raise PlanError(f"all times of the trace are {self.times_s[0]}.\nA trace needs a duration.")
        if self.kind == "rates" and len(self.levels) != len(self.times_s):
            raise PlanError(
                f"the trace holds {len(self.times_s)} times and {len(self.levels)} rates.\nGive one rate a time."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """An open-loop load: requests leave at scheduled times, whether or not earlier ones have come back.

    The same plan gives the same send times on every machine. `timeout_s` is counted from the scheduled
    time; a request that runs into it has failed, at the limit or later, and is never dropped.
    `max_in_flight` holds due requests back while this many are unanswered; the time they wait counts.
    `refuse_above` refuses them instead, as a gateway with such a limit would; they have failed.
    `most_send_lag_ms` is the highest p99 of the send lag at which the run measures the server, not the client;
    None: 1 ms, or 5 % of the limit. After the duration the load goes on until all requests of the duration have
    ended, `tail_s` at most, and these requests are not measured.
    """

    rate_per_s: float
    duration_s: float
    seed: int
    arrivals: Arrivals = field(default_factory=Arrivals)
    timeout_s: float = 10.0
    max_in_flight: int | None = None
    refuse_above: int | None = None
    most_send_lag_ms: float | None = None
    tail_s: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.rate_per_s <= MAX_RATE_PER_S:
            raise PlanError(
                f"a rate of {self.rate_per_s} requests/s cannot be sent.\n"
                f"Use more than 0 and at most {MAX_RATE_PER_S:.0f}."
            )
        _check_times_of_plan(self.duration_s, self.timeout_s, self.seed)
        for name in ("max_in_flight", "refuse_above"):
            most = getattr(self, name)
            if most is not None and most < 1:
                raise PlanError(f"{name} {most} lets no request leave.\nUse 1 or more, or None for no cap.")
        if self.max_in_flight is not None and self.refuse_above is not None:
            raise PlanError("what is held back (max_in_flight) is not refused (refuse_above).\nUse one of them.")

    @property
    def expected_requests(self) -> float:
        """The expected number of requests."""
        return self.mean_rate_per_s * self.duration_s

    @property
    def mean_rate_per_s(self) -> float:
        """The rate over the whole duration: levels do not always average to 1."""
        arrivals, level = self.arrivals, 1.0
        if arrivals.kind in ("ramp", "steps"):
            level = sum(arrivals.levels) / len(arrivals.levels)
        elif arrivals.kind == "spike":
            level += (arrivals.levels[0] - 1.0) * (arrivals.end - arrivals.start)
        return level * self.rate_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoopPlan:
    """A closed-loop load: `concurrency` users who each wait for the answer before they ask again.

    It answers "how fast do N callers go?". It says little about p99 under independent users: when the
    server slows down, so does the load.
    """

    concurrency: int
    duration_s: float
    seed: int = 0
    timeout_s: float = 10.0
    most_send_lag_ms: float | None = None
    """See `LoadPlan`."""

    def __post_init__(self) -> None:
        if not 1 <= self.concurrency <= 10_000:
            raise PlanError(f"concurrency {self.concurrency} is out of range.\nUse 1 to 10000.")
        _check_times_of_plan(self.duration_s, self.timeout_s, self.seed)


def _check_times_of_plan(duration_s: float, timeout_s: float, seed: int) -> None:
    if not 0 < duration_s < math.inf:
        raise PlanError(f"a load of {duration_s} s measures nothing.\nUse a duration over 0.")
    if not 0 < timeout_s < math.inf:
        raise PlanError(f"a time-out of {timeout_s} s fails every request.\nUse a time-out over 0.")
    if seed < 0:
        raise PlanError(f"seed {seed} is negative.\nUse 0 or more.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Streamed:
    """Requests for `output_tokens` tokens each, whose responses are streams.

    Prompts have about `prompt_tokens` tokens; None: they are in the payload's data file. If `allow_short`, a model
    may stop by itself; else a response of fewer tokens has failed.
    """

    api: StreamApi
    output_tokens: int
    prompt_tokens: int | None = None
    allow_short: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """The contents of the requests. The inputs' names and types come from the server's own metadata.

    `shapes` fixes the free dimensions of an input, batch left out: {"ids": (128,)}. `data_file` (.npz, .json, a
    folder with a file per input, or .txt with one length per line) holds samples that are cycled: those numbered
    in `picked` (None: all); without it inputs are drawn with `seed`: floats from a normal distribution, integers
    0 or 1 (legal as ids and as masks). With `shared_memory` "system" they wait in /dev/shm, which the server
    must see as well, and requests name the place; responses come back in full either way. Requests ask for
    `outputs`, or for all. None of this but the file and the seed is about requests that are `streamed`.
    """

    batch_size: int = 1
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    data_file: Path | None = None
    picked: tuple[int, ...] | None = None
    seed: int = 0
    shared_memory: SharedMemory = "none"
    outputs: tuple[str, ...] = ()
    format: TensorFormat = "binary"
    streamed: Streamed | None = None

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise PlanError(f"batch_size {self.batch_size} sends no items.\nUse 1 or more.")
        for name, shape in self.shapes.items():
            if any(size < 1 for size in shape):
                raise PlanError(f"the shape {shape} of {name} holds a size under 1.\nUse positive sizes.")


EXAMPLES = "poisson, constant, gamma:cv=2, ramp:from=0.5,to=2, steps:0.5,1,1.5 or spike:level=3,start=0.4,end=0.5"


def arrivals_from_text(text: str) -> Arrivals:
    """The arrivals that `--arrivals` names. Levels are multiples of the rate, start and end parts of the duration.

    Raises BadInput for words that are not known, PlanError for values that cannot be.
    """
    kind, _, rest = text.partition(":")
    parts = [part.strip() for part in rest.split(",")] if rest else []
    match kind.strip():
        case "poisson" | "constant" as plain if not parts:
            return Arrivals(kind=plain)
        case "gamma":
            return Arrivals(kind="gamma", cv=_named(text, parts, {"cv": None})["cv"])
        case "ramp":
            ends = _named(text, parts, {"from": None, "to": None})
            return Arrivals(kind="ramp", levels=(ends["from"], ends["to"]))
        case "steps" if parts:
            return Arrivals(kind="steps", levels=tuple(_number(text, part) for part in parts))
        case "spike":
            spike = _named(text, parts, {"level": None, "start": 0.4, "end": 0.5})
            return Arrivals(kind="spike", levels=(spike["level"],), start=spike["start"], end=spike["end"])
    raise _not_known(text)


def arrivals_from_file(path: Path, *, option: str = "--trace") -> Arrivals:
    """Return a recorded trace: one time in seconds per line, or `time,rate` lines. `#` begins a comment.

    A first line of words is taken for a heading. Raises BadInput naming the line, PlanError for decreasing times.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise BadInput(
            f"{option} {path} cannot be read: {reason}.", "Give a text file, one time per line."
        ) from error
    rows: list[tuple[float, ...]] = []
    for number, line in enumerate(lines, start=1):
        cells = [cell.strip() for cell in line.partition("#")[0].split(",")]
        if cells == [""]:
            continue
        row = tuple(_number_or_nan(cell) for cell in cells)
        if number == 1 and all(math.isnan(value) for value in row):
            continue
        if any(math.isnan(value) for value in row) or len(row) > 2 or (rows and len(row) != len(rows[0])):
            raise BadInput(
                f"{option} {path}, line {number}: {line.strip()[:60]!r} is neither a time nor a time and a rate.",
                "Write one time in seconds per line, or `time,rate` on every line.",
            )
        rows.append(row)
    times = tuple(row[0] for row in rows)
    if rows and len(rows[0]) == 2:
        return Arrivals(kind="rates", times_s=times, levels=tuple(row[1] for row in rows))
    return Arrivals(kind="trace", times_s=times)


def _named(text: str, parts: list[str], known: dict[str, float | None]) -> dict[str, float]:
    """Return `name=value` parts; `known` maps each name to its default, None if it must be given."""
    given: dict[str, float] = {}
    for part in parts:
        name, equals, value = part.partition("=")
        if not equals or name.strip() not in known:
            raise _not_known(text)
        given[name.strip()] = _number(text, value)
    missing = [name for name, default in known.items() if default is None and name not in given]
    if missing:
        raise BadInput(f"--arrivals {text} lacks {' and '.join(missing)}.", f"Use {EXAMPLES}.")
    return {name: given.get(name, default or 0.0) for name, default in known.items()}


def _number(text: str, value: str) -> float:
    number = _number_or_nan(value)
    if not math.isfinite(number):
        raise BadInput(f"--arrivals {text}: {value!r} is not a number.", f"Use {EXAMPLES}.")
    return number


def _number_or_nan(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _not_known(text: str) -> BadInput:
    return BadInput(f"--arrivals {text} is not known.", f"Use {EXAMPLES}.")
