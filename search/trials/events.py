"""Events of a run, for terminal and log; the core prints nothing itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from search.records.trial import CertificateRecord
from search.trials.trial import Trial


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
    """A configuration is about to be loaded. `knobs` describes it as text."""

    number: int
    knobs: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """One load run ended.

    `latency_ms` is the latency at the first limit's quantile, None if there was no response.
    """

    number: int
    rate_per_s: float
    latency_ms: float | None
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
class ConfirmationEnded:
    """A confirmation run ended for `trial`; `certificate` is None if it was `violated` or inconclusive."""

    trial: Trial
    rate_per_s: float
    certificate: CertificateRecord | None
    violated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetExtended:
    """The time budget was extended by `by_s` to `total_s` because of CPU contention."""

    by_s: float
    total_s: float


Event = PhaseStarted | Note | TrialStarted | Probed | TrialEnded | ConfirmationEnded | BudgetExtended
OnEvent = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Ignore the event."""
    del event
