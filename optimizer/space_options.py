"""Read the options that say what is varied and served together, such as `--instances 1:4` and `--with-model`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from loadgen.errors import BadInput
from loadgen.options.declare import is_file
from loadgen.printable import printable
from loadgen.spec.limits import QUANTILES, Colocated, LatencyLimit
from loadgen.spec.plan import MAX_RATE_PER_S
from loadgen.spec.units import duration_ms
from search.knobs import KNOBS

LONGEST_DELAY_MS = 60_000.0

_NUMBER = re.compile(r"[0-9]{1,9}")


def counts_from_text(option: str, most: int, least: int = 1) -> Callable[[str], tuple[int, ...]]:
    """Return the parser of an option that takes `1,2,8` or `1:4`; it raises BadInput."""

    def parse(text: str) -> tuple[int, ...]:
        found: set[int] = set()
        for part in text.split(","):
            ends = [end.strip() for end in part.split(":")]
            if len(ends) > 2 or not all(_NUMBER.fullmatch(end) for end in ends):
                raise BadInput(
                    f"{option} {text!r} has no numbers or range in {part!r}.",
                    f"Write {option} 1,2,4 or a range, {option} 1:4.",
                )
            first, last = int(ends[0]), int(ends[-1])
            if not least <= first <= last <= most:
                raise BadInput(
                    f"{option} {part.strip()} is out of range.", f"Give numbers from {least} to {most}, ascending."
                )
            found.update(range(first, last + 1))
        return tuple(sorted(found))

    return parse


def delays_from_text(text: str) -> tuple[int, ...]:
    """Return the queue delays in a text such as `0,2ms`, in us. Raises BadInput."""
    found = set()
    for part in map(str.strip, text.split(",")):
        delay_ms = 0.0 if re.fullmatch(r"0+[a-zµ]*", part) else duration_ms(part, option="--queue-delay")
        if delay_ms > LONGEST_DELAY_MS:
            raise BadInput(f"--queue-delay {part} is over a minute.", "Give delays below the latency limit.")
        found.add(round(1000 * delay_ms))
    return tuple(sorted(found))


def excluded_from_texts(texts: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return texts such as `instance_count=4` as pairs of a knob and a value. Raises BadInput."""
    found = []
    for text in texts:
        knob, _, value = text.partition("=")
        if knob.rpartition(".")[2] not in ("engine", *KNOBS) or not value:
            raise BadInput(
                f"--exclude {text!r} names no knob with a value.",
                f"Write KNOB=VALUE, with one of {', '.join(('engine', *KNOBS))}: --exclude instance_count=4",
            )
        if not knob.endswith("engine") and not _NUMBER.fullmatch(value):
            raise BadInput(
                f"--exclude {text!r}: {knob} has whole numbers.", f"Write a number, such as --exclude {knob}=2."
            )
        found.append((knob, value))
    return tuple(dict.fromkeys(found))


BATCHES = counts_from_text(KNOBS["max_batch_size"].option, 128)
INSTANCES = counts_from_text(KNOBS["instance_count"].option, 64)
THREADS = counts_from_text(KNOBS["intra_op_threads"].option, 1024, least=0)


def numbers_text(numbers: tuple[int, ...]) -> str:
    """Return numbers as these options have them."""
    return ",".join(map(str, numbers))


_VARIED = re.compile(
    r"(parameters\.[\w.-]+|optimization(?:\.\w+)+|dynamic_batching\.preferred_batch_size"
    r"|instance_group\.(?:0|[1-9][0-9]*)\.(?:count|kind))"
    r"=([\w./+-]+(?:,[\w./+-]+)*)"
)


def vary_from_texts(texts: Iterable[str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return texts such as `parameters.KEY=V1,V2` as pairs of a field's path and its values. Raises BadInput."""
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        match = _VARIED.fullmatch(text)
        if match is None or match[1] in found:
            why = "varies what another --vary varies" if match else "names nothing to vary, with its values"
            raise BadInput(
                f"--vary {text!r} {why}.",
                "Write parameters.KEY=V1,V2 or optimization.FIELD=V1,V2, or vary "
                "dynamic_batching.preferred_batch_size, instance_group.1.count or instance_group.0.kind.",
            )
        found[match[1]] = tuple(dict.fromkeys(match[2].split(",")))
    return tuple(found.items())


def names_from_text(text: str) -> tuple[str, ...]:
    """Return the names of models in a text such as `a,b`."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",")))


EXAMPLE = "Write --with-model NAME:p99=20ms,rate=900, and input_data=FILE for real inputs."


@dataclass(frozen=True, slots=True, kw_only=True)
class WithModel:
    """Another model of the server: what it is sent meanwhile, and the limits that it has to keep."""

    name: str
    rate_per_s: float
    limits: tuple[LatencyLimit, ...]
    input_data: Path | None = None

    @property
    def text(self) -> str:
        """The option's value."""
        parts = [limit.option.removeprefix("--") for limit in self.limits] + [f"rate={self.rate_per_s:.15g}"]
        return f"{self.name}:{','.join(parts + ([f'input_data={self.input_data}'] if self.input_data else []))}"


def with_models_from_texts(texts: Iterable[str]) -> tuple[WithModel, ...]:
    """Return the models of `NAME:p99=20ms,rate=900`. Raises BadInput."""
    found = tuple(map(_with_model, texts))
    names = [one.name for one in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BadInput(f"--with-model names {twice} twice.", "Give all of its limits at once.")
    return found


def _with_model(text: str) -> WithModel:
    option = f"--with-model {printable(text)}"
    name, _, rest = text.partition(":")
    pairs = [part.partition("=")[::2] for part in rest.split(",")]
    given = dict(pairs)
    unknown = next((key for key in given if key not in (*QUANTILES, "rate", "input_data")), None)
    if not name or not rest or "/" in name or len(given) < len(pairs):
        raise BadInput(f"{option} is not a name and its settings.", EXAMPLE)
    if unknown is not None:
        raise BadInput(f"{option}: {printable(unknown) or 'nothing'} is no setting.", EXAMPLE)
    try:
        rate_per_s = float(given.get("rate", "nan"))
    except ValueError:
        rate_per_s = math.nan
    if not 0 < rate_per_s <= MAX_RATE_PER_S:
        raise BadInput(f"{option} has no rate of at most a million requests/s.", EXAMPLE)
    colocated = Colocated(model=name, rate_per_s=rate_per_s)
    limits = tuple(
        LatencyLimit(limit_ms=duration_ms(given[key], option=f"--{key}"), quantile=share, colocated=colocated)
        for key, share in QUANTILES.items()
        if key in given
    )
    if not limits:
        raise BadInput(f"{option} has no latency limit.", EXAMPLE)
    data = given.get("input_data")
    if data is not None and not is_file(Path(data)):
        raise BadInput(f"{option}: {printable(data)} is not a file.", "Check the path.")
    return WithModel(
        name=name, rate_per_s=rate_per_s, limits=limits, input_data=None if data is None else Path(data).absolute()
    )
