"""The context of a trial (bench, SLO, time budget, seed, workload and events), and one load run in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from loadgen.measurement.cpu_contention import none_if_not_watched
from loadgen.measurement.request_log import RequestLog, none_if_not_finite
from loadgen.spec.limits import LatencyLimit
from loadgen.statistics.capacity_fit import Probe, ProbeResult, evaluate_probe
from loadgen.statistics.checks import change_of
from loadgen.statistics.slo_test import certify_each, combined_answer
from search.labels import memory_text
from search.records.slo import Slo
from search.records.trial import LoadRunRecord, WhyRecord, run_word
from search.trials import events
from search.trials.bench import Bench
from search.trials.budget import Budget
from search.trials.objective import Objective
from search.trials.trial import Trial
from search.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialContext(ABC):
    """Shared by all trials of a search. `stop` is called between trials and while load is running."""

    bench: Bench
    slo: Slo
    budget: Budget
    seed: int
    workload: Workload = field(default_factory=Workload)
    on_event: events.OnEvent = events.ignore
    stop: Callable[[], bool] = lambda: False

    @property
    @abstractmethod
    def objective(self) -> Objective:
        """The objective by which trials are compared."""

    @abstractmethod
    def best_per_s(self) -> float | None:
        """Return the capacity of the best trial so far, which a new one has to beat; None if there is none."""

    def seed_of(self, number: int, run: int) -> int:
        """Return the seed of a load run of a trial, both counted from 0."""
        return self.seed + 104_729 * (1 + number) + 7919 * run

    def observe(self, measured: Callable[[], Trial | None], why: WhyRecord) -> Trial | None:
        """Return the trial from `measured` with its reason, the CPU contention meanwhile and its peak memory.

        If that is over the limit, the trial is infeasible.
        """
        before = self.bench.spent.contention
        trial = measured()
        if trial is None:
            return None
        seen = none_if_not_watched(self.bench.spent.contention - before)
        trial = trial.changed(why=why, contention=seen, memory_bytes=self.bench.memory_bytes(trial.served))
        most = self.slo.max_memory_bytes
        if trial.state == "failed" or most is None or not trial.over_memory(most):
            return trial
        reason = f"the server took {memory_text(trial.memory_bytes or 0)}, over the limit of {memory_text(most)}"
        return trial.changed(state="infeasible", reason=reason, rate_at_limit_per_s=0.0)


def run_load(
    context: TrialContext, rate_per_s: float, seconds: float, *, number: int, repeat: int
) -> tuple[Probe, ProbeResult, int]:
    """Run load; return the probe, its result and its seed. Each `repeat` of a trial has another seed."""
    slo = context.slo

    def hopeless(requests: RequestLog) -> bool:
        return context.stop() or combined_answer(certify_each(requests, slo.tested)) == "violated"

    seed = context.seed_of(number, repeat)
    probe = context.bench.measure(rate_per_s, seconds, seed, hopeless)
    seen = evaluate_probe(probe, rate_per_s, slo.tested)
    return probe, seen, seed


def emit_probed(on_event: events.OnEvent, number: int, seen: ProbeResult, *, met: bool) -> None:
    """Emit the event of a trial's run; `met` is its tendency."""
    tight = seen.verdict
    word = run_word(tight.answer, met=met, overloaded=seen.overloaded, late=tight.violations, n=tight.n)
    on_event(
        events.Probed(
            number=number,
            rate_per_s=seen.rate_per_s,
            latency_ms=none_if_not_finite(seen.first.latency_ms),
            verdict=word if tight.limit.model is None or met else f"{tight.limit.model} {word}",
            quantile=seen.first.limit.quantile,
        )
    )


def load_run_of(seen: ProbeResult, probe: Probe, limits: Sequence[LatencyLimit], *, seed: int) -> LoadRunRecord:
    """Return the record of one load run of a trial."""
    return LoadRunRecord(
        rate_per_s=seen.rate_per_s,
        latency_ms=none_if_not_finite(seen.first.latency_ms),
        met=seen.reading.met,
        trusted=not seen.problems,
        answer=seen.verdict.answer,
        seconds=seen.load_s,
        requests=seen.verdict.n,
        violations=seen.verdict.violations,
        overloaded=seen.overloaded,
        seed=seed,
        problems=seen.problems,
        model=seen.verdict.limit.model,
        change=None if seen.overloaded else change_of(probe.log, limits),
        began_unix_s=probe.began_unix_s,
    )
