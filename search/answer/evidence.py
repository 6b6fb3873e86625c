"""The evidence of a run with its pauses, the conclusion from it, and advice that follows from what was seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from loadgen.errors import UserError
from loadgen.exit_codes import Status
from loadgen.measurement.cpu_contention import CpuContention
from loadgen.records.formats import duration_option, format_rate, format_seconds
from search.arrays import Floats
from search.labels import record_text
from search.records.confirmations import ConfirmationRecord
from search.records.slo import ObjectiveRecord, Slo
from search.records.trial import TrialRecord
from search.trials.bench import ObservedRun
from search.trials.budget import budget_for, usual_certificate_s

MIN_PAUSE_S, MIN_TIMES_USUAL = 0.01, 5.0
"""A pause is a time without any answer though requests waited. It lasts 10 ms at least, and five times the wait
for the next answer at a random moment (the median)."""

MIN_COUNT, MIN_SHARE, OF_LIMIT = 3, 0.5, 0.25
"""Pauses explain the latencies of a run if there are three, if the longer ones take a quarter of the limit, and if
half of the slowest requests waited in one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses:
    """The pauses of all runs together: the tenth and the ninetieth percentile of their length, and how often.

    `share` is that of the slowest requests which waited in one; `configurations` were served meanwhile.
    """

    short_s: float
    long_s: float
    every_s: float
    share: float
    configurations: int

    @property
    def text(self) -> str:
        """Two sentences for users."""
        served = f", with {self.configurations} configurations" if self.configurations > 1 else ""
        length = f"{1e3 * self.short_s:.0f} to {1e3 * self.long_s:.0f} ms"
        return (
            f"About every {self.every_s:.2g} s no answer came for {length}{served}: "
            f"{100 * self.share:.0f} % of the slowest requests waited then. Something stops the server or the "
            "machine: look for other guests of the host, power saving and CPU limits."
        )


def pauses_of(runs: Sequence[ObservedRun], *, limit_s: float, quantile: float) -> Pauses | None:
    """Return the pauses if they explain the slowest requests of the runs, those beyond the quantile; else None.

    Runs of which half of the requests took over half of the limit were overloaded, and say nothing.
    """
    steady = [run for run in runs if float(np.median(run.taken_s)) < limit_s / 2]
    found = [(run, _pauses_in(run)) for run in steady]
    lengths = np.concatenate([np.zeros(0), *(ends - starts for _, (starts, ends) in found)])
    if len(lengths) < MIN_COUNT:
        return None
    short_s, long_s = np.quantile(lengths, (0.1, 0.9))
    slowest = np.concatenate([_slowest_waited(run, *pauses, quantile) for run, pauses in found])
    share = float(slowest.mean())
    if share < MIN_SHARE or long_s < OF_LIMIT * limit_s:
        return None
    return Pauses(
        short_s=float(short_s),
        long_s=float(long_s),
        every_s=sum(run.seconds for run in steady) / len(lengths),
        share=share,
        configurations=len({run.config for run, (starts, _) in found if len(starts)}),
    )


def _pauses_in(run: ObservedRun) -> tuple[Floats, Floats]:
    """Return when pauses began and ended, in seconds of the run."""
    done_s = run.sent_s + run.taken_s
    order = np.argsort(done_s, kind="stable")
    done_s = done_s[order]
    gaps = np.diff(done_s)
    by_length = np.sort(gaps)
    passed_s = np.cumsum(by_length)
    usual_s = by_length[np.searchsorted(passed_s, passed_s[-1] / 2)]
    oldest_sent_s = np.minimum.accumulate(run.sent_s[order][::-1])[::-1]  # of the requests not answered before
    starts_s, ends_s = np.maximum(done_s[:-1], oldest_sent_s[1:]), done_s[1:]
    long = ends_s - starts_s >= max(MIN_PAUSE_S, MIN_TIMES_USUAL * usual_s)
    return starts_s[long], ends_s[long]


def _slowest_waited(run: ObservedRun, starts_s: Floats, ends_s: Floats, quantile: float) -> Floats:
    """Return 1 for each of the slowest requests that waited in a pause, or behind those who did; else 0.

    The queue of a pause takes about as long again.
    """
    slowest = run.taken_s >= np.quantile(run.taken_s, quantile)
    sent_s = run.sent_s[slowest]
    done_s = sent_s + run.taken_s[slowest]
    if not len(starts_s):
        return np.zeros(len(sent_s))
    latest = np.searchsorted(starts_s, done_s) - 1  # the last pause that began before the answer
    over_s = 2 * ends_s[latest] - starts_s[latest]
    return np.asarray((latest >= 0) & (sent_s <= over_s), dtype=np.float64)


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
