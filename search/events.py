"""What a run tells whoever watches it; the core prints nothing itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from search.records import CertificateRecord
    from search.trial import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseStarted:
    """A new part of the run began; `name` is one of `prepare`, `profile`, `search`, `certify`, `finish`."""

    name: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something the user should know, such as a model that is served unbatched and why."""

    text: str
    warning: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStarted:
    """A configuration is about to be loaded. `knobs` describes it in words."""

    number: int
    knobs: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """One load run ended: what was sent and what was seen.

    `p99_ms` is the latency at the first limit's quantile, None where nothing came back.
    """

    number: int
    rate_per_s: float
    p99_ms: float | None
    verdict: str
    quantile: float = 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialEnded:
    """A trial is over and recorded; `best` is the best trial so far, which may be this one."""

    trial: Trial
    best: Trial | None
    elapsed_s: float
    budget_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Certified:
    """A confirmation run ended for `trial`; `certificate` is None where the rate was `broken` or not decided."""

    trial: Trial
    rate_per_s: float
    certificate: CertificateRecord | None
    broken: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetExtended:
    """The time budget became longer by `by_s`, to `total_s`: others had taken the processors."""

    by_s: float
    total_s: float


Event = PhaseStarted | Note | TrialStarted | Probed | TrialEnded | Certified | BudgetExtended
OnEvent = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Watch nothing."""
    del event
