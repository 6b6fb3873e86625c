"""The phases of benchmarks/exhaustive.py: each does what is not in the raw lines yet, while there is time."""

from __future__ import annotations

import math
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ablation import ABLATIONS, ablated, search_phase
from audit import WARMUP_S, answer_of, audited_log
from elimination import Elimination
from exhaustive_call import Call, spending
from exhaustive_elimination import eliminate
from exhaustive_report import FINALISTS
from plain_bisection import LEAST_REQUESTS, Run, Untrusted, bisected, noting, reader, trusted
from raw_lines import Line

from search.bench import BenchFailed
from search.budget import Budget
from search.certification import certify_best
from search.events import Certified, Event
from search.ledger import Key, key_of, open_ledger
from search.space import Knobs, knobs_of
from search.study import Search
from search.triton_bench import TritonBench

SAMPLE_SEED, CAPACITY_SEED, AUDIT_SEED, TPE_SEED = 2_000_003, 3_000_017, 4_000_037, 5_000_011
"""Of arrivals that the search does not see."""

TPE_TRIALS, TPE_PROBES, TPE_PROBE_S = 30, 7, 10.0

SEARCH_S, AROUND_AUDIT_S, TPE_S = 240.0, 15.0, 2300.0
"""Seconds that have to be left for a step to begin; for a search, as many as the longest so far took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How a phase bisects; see `plain_bisection`. `left_s` have to be left for one more configuration to begin."""

    step: float
    growth: float
    resolution: float
    seconds: float
    least_requests: int
    seed: int
    left_s: float


def sample(call: Call) -> None:
    """Plain bisections, as if nothing were known: from two requests in the time of the limit in doubled rates."""
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
    bisect_each(call, "sample", drawn, lambda _: 2e3 / call.subject.slo.limit_ms, manner)


def capacity(call: Call) -> None:
    """Long bisections of what was chosen and of the best of the elimination, from what is known of them."""
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
        least_requests=LEAST_REQUESTS,
        seed=CAPACITY_SEED,
        left_s=5 * call.settings.capacity_s,
    )
    bisect_each(call, "capacity", points, lambda knobs: guesses[key_of(knobs)], manner)


def bisect_each(
    call: Call, phase: str, points: list[Knobs], start_per_s: Callable[[Knobs], float], manner: Manner
) -> None:
    """A line for each distinct configuration that has none in this phase."""
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
    """The search and certification of `optimize`, as its pipeline calls them, for each seed."""
    without = call.settings.without
    phase = search_phase(without)
    for seed in call.mine(range(call.settings.seeds)):
        before = call.lines(phase)
        if any(line["seed"] == seed for line in before):
            continue
        if not call.time_for(max([SEARCH_S, *(line["wall_s"] for line in before)])):
            return
        run_dir = call.out / f"{call.subject.name}-{phase.replace(' ', '-').replace('search', 'seed')}-{seed}"
        shutil.rmtree(run_dir, ignore_errors=True)  # of a call that was killed
        run_dir.mkdir()
        with call.serving(run_dir) as bench, spending(bench) as spent, ablated(without) as other:
            figures = searched(call, bench, run_dir, seed, other.get("search"))
        call.add(phase, spent, seed=seed, **figures)


def searched(
    call: Call, bench: TritonBench, run_dir: Path, seed: int, way: Callable[[Search], object] | None = None
) -> dict[str, object]:
    """What was chosen and promised, and the seconds of load until then; None where nothing was."""
    space, slo = call.subject.space, call.subject.slo
    certified_s: dict[int, float] = {}

    def on_event(event: Event) -> None:
        if isinstance(event, Certified) and event.certificate is not None:
            certified_s[event.trial.number] = bench.spent.load_s

    ledger = open_ledger(space, run_dir, storage="sqlite://", seed=seed)
    budget = Budget(total_s=call.settings.budget_s)
    attempts = Search(ledger=ledger, bench=bench, slo=slo, budget=budget, seed=seed, on_event=on_event)
    if way is None:
        attempts.run()
    else:
        way(attempts)
    search_s = bench.spent.load_s
    certified = certify_best(ledger, bench, slo=slo, budget=budget, seed=seed, on_event=on_event)
    winner = None if certified is None else certified.winner
    certificate = None if winner is None else winner.certificate
    return {
        "trials": len(ledger.trials),
        "paces": ledger.pace + 1,
        "pace_s": call.subject.pace_s(),
        "knobs": None if winner is None else knobs_of(winner.config),
        "estimated_per_s": None if winner is None else winner.rate_at_limit_per_s,
        "promised_per_s": None if certificate is None else certificate.rate_per_s,
        "confirmations": 0 if certificate is None else certificate.runs,
        "caveat": None if certificate is None else certificate.caveat,
        "search_s": search_s,
        "winner_s": bench.spent.load_s if winner is None else certified_s.get(winner.number, bench.spent.load_s),
    }


def audit(call: Call) -> None:
    """Each promise on fresh servers, with arrivals that nobody has seen."""
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
            probe = bench.measure(rate_per_s, WARMUP_S + seconds, arrivals_seed)
        log = probe.log if probe.overloaded else probe.log.between(WARMUP_S, WARMUP_S + seconds)
        figures = audited_log(log, call.subject.slo)
        figures["kept"] = figures["kept"] and not probe.overloaded
        call.add(
            "audit", spent, seed=seed, audit=number, rate_per_s=rate_per_s, seconds=seconds,
            problems=list(probe.problems), answer=answer_of(figures, probe.problems), **figures,
        )  # fmt: skip


def promises(call: Call) -> Iterator[tuple[int, int, Line]]:
    """Seed and number of every audit, with the search's line."""
    for number in range(call.settings.audits):
        for line in call.lines("search"):
            if line["promised_per_s"] is not None:
                yield line["seed"], number, line


def tpe(call: Call) -> None:
    """Optuna's sampler over the same space; a trial is a bisection of seven probes, shorter where overloaded."""
    import optuna

    axes = call.subject.space.axes()
    for seed in call.mine(range(call.settings.seeds)):
        if any(line["seed"] == seed for line in call.lines("tpe")):
            continue
        if not call.time_for(TPE_S):
            return
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
        with call.serving() as bench, spending(bench) as spent:

            def kept_per_s(trial: optuna.Trial, bench: TritonBench = bench, seed: int = seed) -> float:
                for name, values in axes.items():
                    trial.suggest_categorical(name, values)
                bench.load(call.subject.space.config(trial.params))
                low, high = call.floor_per_s, 1000.0 * call.floor_per_s
                for _ in range(TPE_PROBES):
                    middle = math.sqrt(low * high)
                    probe = trusted(bench.measure, middle, TPE_PROBE_S, TPE_SEED + seed)
                    kept = not probe.overloaded and audited_log(probe.log, call.subject.slo)["kept"]
                    low, high = (middle, high) if kept else (low, middle)
                return low

            study.optimize(kept_per_s, n_trials=TPE_TRIALS, catch=(Untrusted,))
        call.add("tpe", spent, seed=seed, knobs=study.best_params, estimated_per_s=study.best_value)


PHASES: dict[str, Callable[[Call], None]] = {
    "eliminate": eliminate,
    "sample": sample,
    "search": search,
    "capacity": capacity,
    "audit": audit,
    "tpe": tpe,
}
