"""Describe one call of benchmarks/exhaustive.py: its subject, raw lines and time, and the cost of its steps."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from lib.audits import cpu_ticks, stolen_share
from lib.exhaustive.subjects import Subject
from lib.raw_lines import Line, add_line, lines_of
from search.trials.triton_bench import TritonBench

Thing = TypeVar("Thing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """See the options of benchmarks/exhaustive.py."""

    seeds: int
    budget_s: float
    samples: int
    edge_s: float
    capacity_s: float
    audit_s: float
    audits: int
    share: tuple[int, int] = (1, 1)
    without: str = "none"


@dataclass(slots=True, kw_only=True)
class Call:
    """One call; it may begin steps for `minutes`."""

    subject: Subject
    out: Path
    minutes: float
    settings: Settings
    _started: float = field(default_factory=time.monotonic)

    @property
    def path(self) -> Path:
        return self.out / f"{self.subject.name}.jsonl"

    @property
    def floor_per_s(self) -> float:
        """A rate so low that requests hardly meet on a server that meets the limit."""
        return 250.0 / self.subject.slo.first.limit_ms

    def mine(self, things: Iterable[Thing]) -> list[Thing]:
        """Return the steps of a phase that belong to this one of several calls: every Nth."""
        which, of = self.settings.share
        return list(things)[which - 1 :: of]

    def lines(self, phase: str) -> list[Line]:
        return [line for line in lines_of(self.path) if line["phase"] == phase]

    def add(self, phase: str, spent: Mapping[str, float], **figures: object) -> Line:
        at = datetime.now(UTC).isoformat(timespec="seconds")
        limit_ms = self.subject.slo.first.limit_ms
        line = {
            "phase": phase,
            "at": at,
            "limit_ms": limit_ms,
            "points": self.subject.space.size(),
            **figures,
            **spent,
        }
        shown = {name: value for name, value in line.items() if name not in ("at", "limit_ms", "points", "curves")}
        print(json.dumps(shown), file=sys.stderr)
        return add_line(self.path, line)

    def time_for(self, seconds: float) -> bool:
        """True if so much time is left; prints a line if not."""
        enough = time.monotonic() + seconds < self._started + 60 * self.minutes
        if not enough:
            print("The time is up; the same command goes on from here.", file=sys.stderr)
        return enough

    @contextmanager
    def serving(self, run_dir: Path | None = None) -> Iterator[TritonBench]:
        """Run a new server, with its files in a folder that is removed afterwards, unless one is given."""
        with tempfile.TemporaryDirectory() as temporary, self.subject.serving(run_dir or Path(temporary)) as bench:
            yield bench


@contextmanager
def spending(bench: TritonBench) -> Iterator[dict[str, float]]:
    """Yield a dictionary that gets, at the end, seconds of load, loading and all, and the stolen CPU share."""
    spent: dict[str, float] = {}
    started, load_s, loading_s = time.monotonic(), bench.spent.load_s, bench.spent.loading_s
    before = cpu_ticks()
    try:
        yield spent
    finally:
        after = cpu_ticks()
        spent["load_s"] = bench.spent.load_s - load_s
        spent["loading_s"] = bench.spent.loading_s - loading_s
        spent["wall_s"] = time.monotonic() - started
        spent["stolen_share"] = stolen_share(before, after)
