"""One call of benchmarks/exhaustive.py: what it is about, its raw lines, its time, and what its steps spend."""

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

from audit import cpu_ticks, stolen_share
from exhaustive_subjects import Subject
from raw_lines import Line, add_line, lines_of

from search.triton_bench import TritonBench

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
    """`minutes` is until when it may begin steps."""

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
        """So low that requests hardly meet on a server that keeps the limit."""
        return 250.0 / self.subject.slo.limit_ms

    def mine(self, things: Iterable[Thing]) -> list[Thing]:
        """Those of a phase that this call of several is to do: every Nth."""
        which, of = self.settings.share
        return list(things)[which - 1 :: of]

    def lines(self, phase: str) -> list[Line]:
        return [line for line in lines_of(self.path) if line["phase"] == phase]

    def add(self, phase: str, spent: Mapping[str, float], **figures: object) -> Line:
        at = datetime.now(UTC).isoformat(timespec="seconds")
        limit_ms = self.subject.slo.limit_ms
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
        """Whether so much is left; said where it is not."""
        enough = time.monotonic() + seconds < self._started + 60 * self.minutes
        if not enough:
            print("The time is up; the same command goes on from here.", file=sys.stderr)
        return enough

    @contextmanager
    def serving(self, run_dir: Path | None = None) -> Iterator[TritonBench]:
        """A fresh server, with its files in a folder that is gone afterwards, unless one is given."""
        with tempfile.TemporaryDirectory() as temporary, self.subject.serving(run_dir or Path(temporary)) as bench:
            yield bench


@contextmanager
def spending(bench: TritonBench) -> Iterator[dict[str, float]]:
    """Filled at the end: seconds of load, of loading, of everything, and the share of processor time stolen."""
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
