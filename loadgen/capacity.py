"""The highest request rate that keeps a latency limit, found in as few seconds of load as possible."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from loadgen.certify import Verdict, certify

if TYPE_CHECKING:
    from collections.abc import Callable

    from loadgen.measurement import RequestLog

    Watch = Callable[[RequestLog], bool]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Probe:
    """One load run. Nothing is decided on a probe with `problems`: the client, not the server, was measured."""

    log: RequestLog
    overloaded: bool
    problems: tuple[str, ...]


class Measure(Protocol):
    """Sends Poisson load at a rate; `watch` is asked about every 0.5 s and ends the run by True."""

    def __call__(self, rate_per_s: float, duration_s: float, seed: int, watch: Watch | None = None) -> Probe:
        """The run's requests, all ended."""
        ...
