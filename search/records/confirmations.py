"""`confirmations.jsonl` of a run: every attempt to confirm that a rate meets the SLO."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from loadgen.finite import Count
from loadgen.measurement.request_log import none_if_not_finite
from loadgen.records.formats import format_rate
from loadgen.records.record import Answer
from loadgen.statistics.confirm import Attempt
from loadgen.statistics.dependence import ONE_SIDED_95
from loadgen.statistics.slo_test import combined_answer
from search.record import Rate, Record, passing_over
from search.records.certificate import SlownessRecord
from search.records.run_files import append_line, read_records
from search.records.trial import SentLoadRecord

CONFIRMATIONS_FILE = "confirmations.jsonl"


class BelievedRecord(Record):
    """What was believed of a candidate before a load run."""

    capacity_per_s: Rate = Field(description="The median of its capacity at the machine's usual speed.")
    low_per_s: Rate = Field(description="At the lower end of the 90 % interval.")
    high_per_s: Rate = Field(description="At the upper end of it.")
    covered_per_s: Rate | None = Field(
        default=None, description="What it keeps at the speeds of the machine in the whole run. null: not asked."
    )
    chance: float | None = Field(
        default=None, ge=0, le=1, description="Share of simulated tests at the rate that met it; null: none was."
    )
    needed_s: float | None = Field(
        default=None, description="Seconds until the rate would be certified; null: no test was simulated."
    )
    machine: SlownessRecord | None = Field(default=None, description="null: not asked, or an earlier version.")

    @property
    def capacity(self) -> str:
        """The median and the 90 % interval, in words."""
        low, high = format_rate(self.low_per_s), format_rate(self.high_per_s)
        return f"{format_rate(self.capacity_per_s)} ({low} to {high})"


def believed(capacity_per_s: float, error: float, **more: Any) -> BelievedRecord:
    """Return a belief in a capacity of which `error` is the standard error of its logarithm."""
    low_per_s, high_per_s = (capacity_per_s * math.exp(sign * ONE_SIDED_95 * error) for sign in (-1, 1))
    return BelievedRecord(capacity_per_s=capacity_per_s, low_per_s=low_per_s, high_per_s=high_per_s, **more)


class ConfirmationRecord(SentLoadRecord):
    """One line: a load run with fresh arrivals, which ends when it is decided if the rate is certified."""

    schema_version: Literal[2] = 2
    trial: int
    again: bool = Field(description="True for a second confirmation; on a restarted server if we run it.")
    answer: Answer = Field(description="met, violated or inconclusive; with problems, the client may be why.")
    reason: str
    overloaded: bool
    seconds: float
    requests: Count
    violations: Count = Field(description="Violations of the first limit, or of a colocated model's.")
    burst: float | None = Field(
        default=None, description="The mean number of late requests in a group; null: too short to tell."
    )
    believed: BelievedRecord | None = Field(default=None, description="null: an earlier version.")

    _earlier = passing_over("why")

    @property
    def late(self) -> str:
        """How many requests were late, in words."""
        to = "" if self.model is None else f" to {self.model}"
        return f"{self.violations:,} of {self.requests:,} requests{to} were late or failed"


def keep_attempt(
    directory: Path,
    attempt: Attempt,
    *,
    trial: int,
    again: bool,
    change: str | None = None,
    belief: BelievedRecord | None = None,
    began_unix_s: float | None = None,
) -> None:
    """Append an attempt, before which there was a `belief`; `change` says how its run changed in its middle."""
    others = (one for one in attempt.others if one.limit.model is not None and one.answer == "violated")
    verdict = next(others, attempt.verdict)
    record = ConfirmationRecord(
        trial=trial,
        again=again,
        rate_per_s=attempt.rate_per_s,
        met=attempt.met,
        answer=combined_answer(attempt.verdicts),
        reason=attempt.reason,
        overloaded=attempt.overloaded,
        seconds=attempt.load_s,
        requests=verdict.n,
        violations=verdict.violations,
        model=verdict.limit.model,
        latency_ms=none_if_not_finite(attempt.verdict.latency_ms),
        problems=attempt.problems,
        burst=none_if_not_finite(verdict.burst),
        change=change,
        believed=belief,
        began_unix_s=began_unix_s,
    )
    append_line(directory / CONFIRMATIONS_FILE, record.model_dump_json())


def violated_since(
    attempts: Iterable[ConfirmationRecord], trial: int, rate_per_s: float
) -> ConfirmationRecord | None:
    """Return the first attempt that violated the SLO at a trial's rate or below, after the rate was last met."""
    found = None
    for one in attempts:
        if one.trial == trial and one.met and one.rate_per_s >= rate_per_s:
            found = None
        elif one.trial == trial and one.answer == "violated" and not one.problems and one.rate_per_s <= rate_per_s:
            found = found or one
    return found


def read_confirmations(directory: Path) -> tuple[ConfirmationRecord, ...]:
    """Return all attempts of a run in order; empty if there is no such file. Raises BadInput if it is damaged."""
    return read_records(directory / CONFIRMATIONS_FILE, ConfirmationRecord, what="a confirmation")
