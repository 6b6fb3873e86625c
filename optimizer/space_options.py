"""Read the options that restrict the search space, such as `--instances 1:4`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from loadgen.errors import BadInput
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
        delay_ms = 0.0 if re.fullmatch(r"0+[a-zµ]*", part) else duration_ms(part, option="--queue-delay")[0]
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


def excluded_texts(excluded: tuple[tuple[str, str], ...]) -> list[str]:
    """Return pairs of a knob and a value as the option has them."""
    return [f"{knob}={value}" for knob, value in excluded]


BATCHES = counts_from_text(KNOBS["max_batch_size"].option, 128)
INSTANCES = counts_from_text(KNOBS["instance_count"].option, 64)
THREADS = counts_from_text(KNOBS["intra_op_threads"].option, 1024, least=0)


def numbers_text(numbers: tuple[int, ...]) -> str:
    """Return numbers as these options have them."""
    return ",".join(map(str, numbers))
