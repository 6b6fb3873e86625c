"""The evidence of a run, the conclusion from it, and advice that follows from what was seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from loadgen.errors import UserError
from loadgen.exit_codes import Status
from loadgen.measurement.cpu_contention import CpuContention
from loadgen.records.formats import duration_option, format_rate, format_seconds
from search.answer.pauses import Pauses
from search.labels import record_text
from search.records.confirmations import ConfirmationRecord
from search.records.slo import ObjectiveRecord, Slo
from search.records.trial import TrialRecord
from search.trials.budget import budget_for, usual_certificate_s

GO_ON = "go on with optimize --resume and the run's directory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """How a run ended. `advice` is empty if there is nothing to do."""

    status: Status
    reason: str
    advice: str


class NothingFound(UserError):
    """The run recommends nothing: its conclusion says why. `contention`: of all load; None: not measured."""

    def __init__(
        self, what: str, fix: str, status: Status = "violated", contention: CpuContention | None = None
    ) -> None:
        super().__init__(what, fix)
        self.args = (what, fix, status, contention)
        self.status = status
        self.contention = contention


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvidence:
    """What a run has recorded. `winner` has its certificate; None if no rate was certified.

    `several_sizes`: the requests differ in shape. `contention` is that of all load of the run. Its time budget was
    `budget_s`; preparation took `prepared_s` of it, the search after that `searched_s`. `pauses` explain the
    slowest requests, if they do. `lost` is the lowest rate at which more answers were lost than may be late, and
    their number.
    """

    slo: Slo
    trials: Sequence[TrialRecord]
    confirmations: Sequence[ConfirmationRecord] = ()
    objective: ObjectiveRecord = field(default_factory=ObjectiveRecord)
    winner: TrialRecord | None = None
    interrupted: bool = False
    contention: CpuContention | None = None
    several_sizes: bool = False
    budget_s: float = math.inf
    prepared_s: float = 0.0
    searched_s: float = 0.0
    pauses: Pauses | None = None
    lost: tuple[float, int] | None = None

    def in_state(self, *states: str) -> list[TrialRecord]:
        """Return the trials that ended in one of these states."""
        return [trial for trial in self.trials if trial.state in states]


def inconclusive(reason: str, advice: str) -> Conclusion:
    """Return the conclusion that more load is needed."""
    return Conclusion(status="inconclusive", reason=reason, advice=advice)


def untrustworthy(reason: str, advice: str) -> Conclusion:
    """Return the conclusion that the client or the machine could not measure."""
    return Conclusion(status="untrustworthy", reason=reason, advice=advice)


def violated(reason: str, advice: str) -> Conclusion:
    """Return the conclusion that the SLO is surely violated."""
    return Conclusion(status="violated", reason=reason, advice=advice)


def advise_longer(run: RunEvidence, rate_per_s: float) -> str:
    """Return the time budget that a certificate at about this rate needs, and what its time is for.

    Rates that were violated are tried again, and take as long as they did. A run that had so much time
    already needs as much more as a certificate takes.
    """
    needs_s = usual_certificate_s(rate_per_s, run.slo)
    refuted_s = sum(one.seconds for one in run.confirmations if one.answer == "violated" and not one.problems)
    before_s = run.prepared_s + run.searched_s + refuted_s
    budget_s = budget_for(needs_s, prepared_s=run.prepared_s, searched_s=run.searched_s + refuted_s)
    if budget_s <= run.budget_s < math.inf:
        budget_s = run.budget_s + needs_s
    refuted = ", search and violated rates" if refuted_s else " and search"
    return (
        f"Give --time-budget {duration_option(10 * math.ceil(budget_s / 10))}: two confirmations at about "
        f"{format_rate(rate_per_s)} requests/s usually take {format_seconds(math.ceil(needs_s))}; before "
        f"them, preparation{refuted} took {format_seconds(math.ceil(before_s))}."
    )


def advise_quieter(contention: str | None) -> str:
    """Return what helps against a disturbed measurement: against CPU contention, else against a late client."""
    if contention is not None and "other processes" not in contention:
        return f"Measure on a host without other guests, or at a quieter time; {GO_ON}."
    if contention is not None:
        return f"Stop the other processes, or measure on a machine of its own; {GO_ON}."
    return "Leave a processor to the client, or say with --max-send-lag which lag you accept."


def knobs(trial: TrialRecord) -> str:
    """Return the configuration of a trial in words."""
    seen = trial.measurement
    return record_text(trial.config, on_gpu=seen is not None and seen.gpu is not None)


def rounded_up(value_ms: float) -> float:
    """Return a latency with three digits, not below it."""
    digits = 2 - math.floor(math.log10(value_ms))
    return math.ceil(round(value_ms * 10.0**digits, 6)) / 10.0**digits


def short_ms(value: float) -> str:
    """Return a latency with three digits, such as `8.2` and `2,810`."""
    return f"{float(f'{value:.3g}'):,.10g}"
