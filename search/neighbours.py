"""What others took of the processors while a configuration was measured: how it is kept, and how it is said."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from pydantic import Field

from search import events
from search.record import Record

if TYPE_CHECKING:
    from loadgen.neighbours import Neighbours
    from search.bench import Bench
    from search.budget import Budget

MARKED_SHARE, MARKED_S = 0.1, 1.0
"""What has to be disturbed of some load, as a share and in seconds, before it is said: each look is about a
second, and a single one may have met somebody's cron job."""

_SHOWN_CORES = 0.05


class NeighboursRecord(Record):
    """What others took of the processors that served and sent this load. Sums of several runs add up."""

    watched_s: float = Field(description="Seconds of load in which the processors were looked at.")
    disturbed_s: float = Field(description="Of these, those in which others took what counts.")
    others_cpu_s: float = Field(description="Processor seconds that other processes took meanwhile.")
    stolen_cpu_s: float = Field(description="Processor seconds that the host gave to its other guests meanwhile.")

    @property
    def marked(self) -> bool:
        """Whether it is enough to be said."""
        return self.disturbed_s >= max(MARKED_S, MARKED_SHARE * self.watched_s)

    @property
    def text(self) -> str:
        """`other processes took 0.9 cores for 34 of 120 s of load`."""
        seconds = max(self.disturbed_s, 1e-9)
        others, stolen = self.others_cpu_s / seconds, self.stolen_cpu_s / seconds
        who = [f"other processes took {cores_text(others)}"] if others >= _SHOWN_CORES or not stolen else []
        who += [f"other guests of the host took {cores_text(stolen)}"] if stolen >= _SHOWN_CORES else []
        return f"{' and '.join(who)} for {self.disturbed_s:.0f} of {self.watched_s:.0f} s of load"

    def __add__(self, other: NeighboursRecord) -> NeighboursRecord:
        mine, its = self.model_dump(), other.model_dump()
        return NeighboursRecord(**{name: value + its[name] for name, value in mine.items()})


def cores_text(cores: float) -> str:
    """`0.9 cores`, `1 core`."""
    return f"{cores:.1f} cores" if f"{cores:.1f}" != "1.0" else "1 core"


def record_of(seen: Neighbours) -> NeighboursRecord | None:
    """What was seen; None where nobody could look."""
    return NeighboursRecord(**asdict(seen)) if seen.watched_s > 0 else None


def seen_in_both(first: NeighboursRecord | None, second: NeighboursRecord | None) -> NeighboursRecord | None:
    """What was seen in two runs together; of those in which nobody could look, nothing is known."""
    return first + second if first is not None and second is not None else first or second


def mark_of(record: NeighboursRecord | None) -> str | None:
    """What is said of a measurement that was disturbed; None of any other."""
    return None if record is None or not record.marked else record.text


def made_up_for(bench: Bench, budget: Budget, on_event: events.OnEvent) -> bool:
    """Whether the budget was extended, now and for the only time, by what neighbours took of it; says so."""
    by_s = budget.make_up(bench.spent.neighbours.disturbed_s)
    if by_s:
        on_event(events.BudgetExtended(by_s=by_s, total_s=budget.total_s))
    return by_s > 0
