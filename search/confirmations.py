"""`confirmations.jsonl` of a run: every attempt to confirm a rate, kept or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from loadgen.finite import Count
from loadgen.measurement import known
from loadgen.several import joint_answer
from search.files import append_line, read_records
from search.record import Record

if TYPE_CHECKING:
    from pathlib import Path

    from loadgen.confirm import Attempt

CONFIRMATIONS_FILE = "confirmations.jsonl"


class ConfirmationRecord(Record):
    """One line: a run with fresh arrivals, until it was decided whether the rate may be promised."""

    schema_version: Literal[1] = 1
    trial: int
    again: bool = Field(description="After a confirmation that was kept, on a restarted server.")
    rate_per_s: float
    kept: bool
    answer: str = Field(description="kept, broken or undecided; of no weight where there are problems.")
    reason: str
    overloaded: bool
    seconds: float
    requests: Count
    violations: Count = Field(description="Of the first limit.")
    latency_ms: float | None = Field(description="At the first limit's quantile; null where too much failed.")
    problems: tuple[str, ...]


def keep_attempt(directory: Path, attempt: Attempt, *, trial: int, again: bool) -> None:
    """Append an attempt to the run's file."""
    verdict = attempt.verdict
    record = ConfirmationRecord(
        trial=trial,
        again=again,
        rate_per_s=attempt.rate_per_s,
        kept=attempt.kept,
        answer=joint_answer(attempt.verdicts),
        reason=attempt.reason,
        overloaded=attempt.overloaded,
        seconds=attempt.load_s,
        requests=verdict.n,
        violations=verdict.violations,
        latency_ms=known(verdict.latency_ms),
        problems=attempt.problems,
    )
    append_line(directory / CONFIRMATIONS_FILE, record.model_dump_json())


def read_confirmations(directory: Path) -> tuple[ConfirmationRecord, ...]:
    """All attempts of a run in order; empty where there is no such file. Raises BadInput for a damaged one."""
    return read_records(directory / CONFIRMATIONS_FILE, ConfirmationRecord, what="a confirmation")
