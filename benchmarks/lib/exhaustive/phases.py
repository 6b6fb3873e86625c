"""Run the phases of benchmarks/exhaustive.py: each does the steps not yet in the raw lines, in the given time."""

from __future__ import annotations

import math
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lib.ablation import ABLATIONS, ablated, search_phase
from lib.audits import WARMUP_S, answer_of, audited_log
from lib.elimination import Elimination
from lib.exhaustive.call import Call, spending
from lib.exhaustive.eliminate import eliminate
from lib.exhaustive.report import FINALISTS
from lib.plain_bisection import MIN_REQUESTS, Run, Untrusted, bisected, noting, reader, trusted
from lib.raw_lines import Line
from loadgen.measurement.cpu_contention import (
    NeighbourSampler,
    counters_of_family,
    mark_of,
    none_if_not_watched,
)
from search.certification.certify import certify_best
from search.space import Key, Knobs, key_of, knobs_of
from search.study.guided_search import GuidedSearch
from search.study.run import run_search
from search.study.store import open_store
from search.study.trial_runner import TrialRunner
from search.trials.bench import BenchFailed, ObservedBench
from search.trials.context import Budget
from search.trials.events import ConfirmationEnded, Event
from search.trials.triton_bench import TritonBench

SAMPLE_SEED, CAPACITY_SEED, AUDIT_SEED, TPE_SEED = 2_000_003, 3_000_017, 4_000_037, 5_000_011
"""These seeds give arrivals that the search does not see."""

TPE_TRIALS, TPE_PROBES, TPE_PROBE_S = 30, 7, 10.0

SEARCH_S, AROUND_AUDIT_S, TPE_S = 240.0, 15.0, 2300.0
"""A step begins only if at least so many seconds are left; a search, if as many as the longest so far took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How a phase bisects; see `plain_bisection`. Another configuration begins only if `left_s` are left."""

    step: float
    growth: float
    resolution: float
    seconds: float
    least_requests: int
    seed: int
    left_s: float


def sample(call: Call) -> None:
    """Bisect without prior knowledge: start at two requests per limit, and double the rate."""
    points = sorted(call.subject.space.points(), key=lambda knobs: str(key_of(knobs)))
    drawn = random.Random(0).sample(points, min(call.settings.samples, len(points)))
    manner = Manner(
        step=2.0,
        growth=1.0,
        resolution=0.02,
        seconds=call.settings.edge_s,
        least_requests=300,
        seed=SAMPLE_SEED,
        left_s=120.0,
    )
    bisect_each(call, "sample", drawn, lambda _: 2e3 / call.subject.slo.first.limit_ms, manner)


def capacity(call: Call) -> None:
    """Bisect at length the chosen configurations and the best of the elimination, from their known rates."""
    guesses: dict[Key, float] = {}
    points: list[Knobs] = []
    eliminated = call.lines("eliminate")
    for line in eliminated:
        if line["verdict"] == "measured":
            guesses[key_of(line["knobs"])] = line["rate_per_s"] * line["pace_s"] / call.subject.pace_s()
    for line in (line for without in ABLATIONS for line in call.lines(search_phase(without))):
        if line["knobs"] is not None:
            points.append(line["knobs"])
            guesses.setdefault(key_of(line["knobs"]), line["estimated_per_s"])
    state = Elimination(list(call.subject.space.points()), eliminated)
    if state.counts()["left"] == 0:
        points += state.finalists(FINALISTS)
    manner = Manner(
        step=1.02,
        growth=2.0,
        resolution=0.01,
        seconds=call.settings.capacity_s,
        least_requests=MIN_REQUESTS,
        seed=CAPACITY_SEED,
        left_s=5 * call.settings.capacity_s,
    )
    bisect_each(call, "capacity", points, lambda knobs: guesses[key_of(knobs)], manner)


def bisect_each(
    call: Call, phase: str, points: list[Knobs], start_per_s: Callable[[Knobs], float], manner: Manner
) -> None:
    """Add a line for each distinct configuration that has none in this phase."""
    done = {key_of(line["knobs"]) for line in call.lines(phase)}
    each = {key_of(knobs): knobs for knobs in points}
    left = {key: knobs for key, knobs in call.mine(each.items()) if key not in done}
    if not left:
        return
    with call.serving() as bench:
        for knobs in left.values():
            if not call.time_for(manner.left_s):
                return
            runs: list[Run] = []
            pace_s = call.subject.pace_s()
            try:
                with spending(bench) as spent:
                    bench.load(call.subject.space.config(knobs))
                    read = reader(
                        bench.measure,
                        call.subject.slo,
                        seconds=manner.seconds,
                        seed=manner.seed,
                        least_requests=manner.least_requests,
                    )
                    found = bisected(
                        noting(read, runs),
                        start_per_s(knobs),
                        step=manner.step,
                        growth=manner.growth,
                        floor_per_s=call.floor_per_s,
                        resolution=manner.resolution,
                    )
            except (Untrusted, BenchFailed) as problem:
                call.add(f"{phase} failed", spent, knobs=knobs, runs=runs, reason=str(problem))
                continue
            call.add(phase, spent, knobs=knobs, pace_s=pace_s, runs=runs, **found.figures())


def search(call: Call) -> None:
    """Run the search and certification of `optimize`, as its pipeline calls them, for each seed."""
    without = call.settings.without
    phase = search_phase(without)
    for seed in call.mine(range(call.settings.seeds)):
        before = call.lines(phase)
        if any(line["seed"] == seed for line in before):
            continue
        if not call.time_for(max([SEARCH_S, *(line["wall_s"] for line in before)])):
            return
        run_dir = call.out / f"{call.subject.name}-{phase.replace(' ', '-').replace('search', 'seed')}-{seed}"
        shutil.rmtree(run_dir, ignore_errors=True)  # left by a killed call
        run_dir.mkdir()
        with call.serving(run_dir) as bench, spending(bench) as spent, ablated(without) as other:
            figures = searched(call, bench, run_dir, seed, other.get("search", run_search))
        call.add(phase, spent, seed=seed, **figures)


def searched(
    call: Call, bench: TritonBench, run_dir: Path, seed: int, way: Callable[[TrialRunner], object] = run_search
) -> dict[str, object]:
    """Return the chosen configuration, its certified rate, and the seconds of load until then; None if none."""
    space, slo = call.subject.space, call.subject.slo
    certified_s: dict[int, float] = {}

    def on_event(event: Event) -> None:
        if isinstance(event, ConfirmationEnded) and event.certificate is not None:
            certified_s[event.trial.number] = bench.spent.load_s

    store = open_store(space, run_dir, storage="sqlite://", seed=seed)
    budget = Budget(total_s=call.settings.budget_s)
    observed = ObservedBench(bench)
    runner = TrialRunner(store=store, bench=observed, slo=slo, budget=budget, seed=seed, on_event=on_event)
    found = way(runner)
    search_s = bench.spent.load_s
    certified = certify_best(runner, found if isinstance(found, GuidedSearch) else None)
    winner = None if certified is None else certified.winner
    certificate = None if winner is None else winner.certificate
    return {
        "trials": len(store.trials),
        "pace_s": call.subject.pace_s(),
        "knobs": None if winner is None else knobs_of(winner.served),
        "estimated_per_s": None if winner is None else winner.rate_at_limit_per_s,
        "promised_per_s": None if certificate is None else certificate.rate_per_s,
        "confirmations": 0 if certificate is None else certificate.runs,
        "caveat": None if certificate is None else certificate.caveat,
        "search_s": search_s,
        "winner_s": bench.spent.load_s if winner is None else certified_s.get(winner.number, bench.spent.load_s),
    }


def audit(call: Call) -> None:
    """Audit each certified rate on new servers, with new arrivals."""
    done = {(line["seed"], line["audit"]) for line in call.lines("audit")}
    for seed, number, line in call.mine(sorted(promises(call), key=lambda promise: promise[:2])):
        if (seed, number) in done:
            continue
        if not call.time_for(call.settings.audit_s + AROUND_AUDIT_S):
            return
        rate_per_s, seconds = line["promised_per_s"], call.settings.audit_s
        arrivals_seed = AUDIT_SEED + 1000 * number + seed
        with call.serving() as bench, spending(bench) as spent:
            bench.load(call.subject.space.config(line["knobs"]))
            with NeighbourSampler(counters_of_family()) as contention:
                probe = bench.measure(rate_per_s, WARMUP_S + seconds, arrivals_seed)
        mark = mark_of(none_if_not_watched(contention.seen))
        log = probe.log if probe.overloaded else probe.log.between(WARMUP_S, WARMUP_S + seconds)
        figures = audited_log(log, call.subject.slo)
        figures["met"] = figures["met"] and not probe.overloaded
        call.add(
            "audit", spent, seed=seed, audit=number, rate_per_s=rate_per_s, seconds=seconds,
            problems=list(probe.problems), contention=mark,
            answer=answer_of(figures, probe.problems, mark), **figures,
        )  # fmt: skip


def promises(call: Call) -> Iterator[tuple[int, int, Line]]:
    """Yield seed and number of every audit, with the search's line."""
    for number in range(call.settings.audits):
        for line in call.lines("search"):
            if line["promised_per_s"] is not None:
                yield line["seed"], number, line


def tpe(call: Call) -> None:
    """Run Optuna's sampler on the same space; a trial is a bisection of seven probes, shorter if overloaded."""
    import optuna

    axes = call.subject.space.axes()
    for seed in call.mine(range(call.settings.seeds)):
        if any(line["seed"] == seed for line in call.lines("tpe")):
            continue
        if not call.time_for(TPE_S):
            return
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
        with call.serving() as bench, spending(bench) as spent:

            def met_per_s(trial: optuna.Trial, bench: TritonBench = bench, seed: int = seed) -> float:
                for name, values in axes.items():
                    trial.suggest_categorical(name, values)
                bench.load(call.subject.space.config(trial.params))
                low, high = call.floor_per_s, 1000.0 * call.floor_per_s
                for _ in range(TPE_PROBES):
                    middle = math.sqrt(low * high)
                    probe = trusted(bench.measure, middle, TPE_PROBE_S, TPE_SEED + seed)
                    met = not probe.overloaded and audited_log(probe.log, call.subject.slo)["met"]
                    low, high = (middle, high) if met else (low, middle)
                return low

            study.optimize(met_per_s, n_trials=TPE_TRIALS, catch=(Untrusted,))
        call.add("tpe", spent, seed=seed, knobs=study.best_params, estimated_per_s=study.best_value)


PHASES: dict[str, Callable[[Call], None]] = {
    "eliminate": eliminate,
    "sample": sample,
    "search": search,
    "capacity": capacity,
    "audit": audit,
    "tpe": tpe,
}
