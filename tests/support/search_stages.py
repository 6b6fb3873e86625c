"""Account for the seconds of a simulated search by stage, and for those that did not change its answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from simulated_bench import SimulatedBench

from model_repo.spec import ServingConfig
from search.records.confirmations import ConfirmationRecord
from search.simulator.service_times import ClosedLoop
from search.space import knobs_of
from search.trials.trial import Trial

STAGES = ("profile", "baseline", "trials", "first confirmation", "second confirmation", "baseline's confirmation")

Profiled = tuple[tuple[str, int | str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Seconds of load of a stage, and how many of them left the answer as it was."""

    seconds: float = 0.0
    idle_s: float = 0.0

    def __add__(self, other: Stage) -> Stage:
        return Stage(seconds=self.seconds + other.seconds, idle_s=self.idle_s + other.idle_s)


@dataclass
class AccountedBench(SimulatedBench):
    """A simulated bench that keeps the seconds of closed loops by what they profiled."""

    profiled_s: dict[Profiled, float] = field(default_factory=lambda: defaultdict(float))

    def saturate(self, concurrency: int, duration_s: float, seed: int, shape: int | None = None) -> ClosedLoop:
        before_s = self.spent.load_s
        loop = super().saturate(concurrency, duration_s, seed, shape)
        self.profiled_s[profiled(self.loaded[-1])] += self.spent.load_s - before_s
        return loop


def profiled(config: ServingConfig, **changed: int) -> Profiled:
    """Return what a profile of this configuration is of: everything but batch size and queue delay."""
    knobs = {**knobs_of(config), **changed}
    return tuple(
        sorted((name, knobs[name]) for name in knobs if name not in ("max_batch_size", "max_queue_delay_us"))
    )


def stages_of(
    bench: AccountedBench,
    trials: Sequence[Trial],
    confirmations: Iterable[ConfirmationRecord],
    *,
    winner: Trial | None,
    capacity_per_s: float | None,
) -> dict[str, Stage]:
    """Return the seconds of each stage of a search and its certification.

    Idle are: profiles of other kinds and instance counts than the winner's, and than one instance of its kind; a
    baseline that does not win; trials that were not the best so far; attempts that did not confirm a rate which
    the winner can keep, and those of configurations that did not win. `capacity_per_s` is the winner's.
    """
    found = dict.fromkeys(STAGES, Stage())

    def add(stage: str, seconds: float, *, useful: bool) -> None:
        found[stage] += Stage(seconds=seconds, idle_s=0.0 if useful else seconds)

    needed = () if winner is None else (profiled(winner.served), profiled(winner.served, instance_count=1))
    for kind, seconds in bench.profiled_s.items():
        add("profile", seconds, useful=kind in needed)
    best_per_s = 0.0
    for trial in trials:
        rate = (trial.rate_at_limit_per_s or 0.0) if trial.state == "complete" else 0.0
        if trial.number == 0:
            add("baseline", trial.load_s, useful=winner is not None and winner.number == 0)
        else:
            add("trials", trial.load_s, useful=rate > best_per_s)
        best_per_s = max(best_per_s, rate)
    for one in confirmations:
        won = winner is not None and one.trial == winner.number
        if one.trial == 0 and not won:
            add("baseline's confirmation", one.seconds, useful=False)
            continue
        refused = capacity_per_s is not None and one.rate_per_s > capacity_per_s
        stage = "second confirmation" if one.again else "first confirmation"
        add(stage, one.seconds, useful=won and (one.met or refused))
    return found
