"""Events of a run, for terminal and log; the core prints nothing itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from search.records.certificate import CertificateRecord
from search.trials.trial import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseStarted:
    """A new part of the run began; `name` is one of `prepare`, `profile`, `search`, `certify`, `finish`."""

    name: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStarted:
    """A step of the preparation began; others may be under way."""

    step: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnded:
    """A step of the preparation took these seconds; `cached`: its result is from an earlier run."""

    step: str
    seconds: float
    cached: bool = False


NoteCode = Literal[
    "answers_differ",  # this trial is not chosen: its batches mix rows
    "certification_failed",  # the server failed while this trial was certified
    "lower_confidence",
    "not_met",  # a confirmation of this trial met the SLO at no rate
    "over_memory",  # this trial is not chosen
    "run_changed",  # a load run changed in its middle
    "run_not_trusted",  # a load run measured the client
    "time_to_certify",  # a certificate takes longer than usual
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something the user should know, such as a model that is served unbatched and why.

    `code` names what happened, for notes of certification; `trial` is the number of the trial, if it is about one.
    """

    text: str
    warning: bool = False
    code: NoteCode | None = None
    trial: int | None = None


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


Event = PhaseStarted | StepStarted | StepEnded | Note | TrialStarted | Probed | TrialEnded | ConfirmationEnded
OnEvent = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Ignore the event."""
    del event


@dataclass(slots=True)
class Step:
    """A step that is under way; `cached` is set by the block that carries it out."""

    cached: bool = False


@contextmanager
def timed_step(on_event: OnEvent, name: str) -> Iterator[Step]:
    """Emit that a step of the preparation begins, and its seconds when the block ends, unless it raises."""
    step, started = Step(), time.monotonic()
    on_event(StepStarted(step=name))
    yield step
    on_event(StepEnded(step=name, seconds=time.monotonic() - started, cached=step.cached))
