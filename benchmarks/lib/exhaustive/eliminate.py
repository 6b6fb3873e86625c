"""Find the best of all configurations on the real server: the phase `eliminate` of benchmarks/exhaustive.py."""

from __future__ import annotations

import sys

from lib.elimination import Elimination, throughput_bound_per_s, too_little, tried
from lib.exhaustive.call import Call, spending
from lib.plain_bisection import Run, Untrusted, noting, reader
from search.labels import knobs_text
from search.simulator.service_times import NotMeasured, measure_curve
from search.simulator.service_times_file import curves_from_text, profile_text
from search.simulator.surrogate import Surrogate, kinds_to_profile
from search.space import Knobs, key_of
from search.trials.bench import BenchFailed
from search.trials.triton_bench import TritonBench

SEED = 1_000_003
"""This seed gives arrivals that the search does not see."""

PROFILE_S, STEP_S = 15.0, 60.0
"""The profile or a step begins only if at least so many seconds are left."""


def eliminate(call: Call) -> None:
    space = call.subject.space
    with call.serving() as bench:
        surrogate = profiled(call, bench)
        if surrogate is None:
            return
        surrogate.simulate(list(space.points()))

        def predicted_per_s(knobs: Knobs) -> float:
            found = surrogate.predicted(knobs)
            return 0.0 if found is None else found.rate_per_s

        mine = call.mine(sorted(space.points(), key=lambda knobs: str(key_of(knobs))))
        order = sorted(mine, key=predicted_per_s, reverse=True)
        state = Elimination(order, call.lines("eliminate"))
        for knobs in state.left():
            if not call.time_for(STEP_S):
                return
            state.lines = call.lines("eliminate")  # other calls may have found a better one
            pace_s = call.subject.pace_s()
            best_per_s = state.best_per_s(pace_s)
            bound = throughput_bound_per_s(surrogate.curves[surrogate.kind_of(knobs)], knobs)
            figures = {"knobs": knobs, "pace_s": pace_s, "predicted_per_s": predicted_per_s(knobs)}
            if call.subject.steady and too_little(bound, best_per_s):
                figures |= {"verdict": "throughput", "bound_per_s": bound, "best_per_s": best_per_s}
                call.add("eliminate", {"load_s": 0.0, "loading_s": 0.0}, **figures)
                continue
            with spending(bench) as spent:
                figures |= put_to_the_test(call, bench, knobs, best_per_s, predicted_per_s(knobs))
            if figures["verdict"] == "untrusted":
                state.skipped.add(key_of(knobs))
            call.add("eliminate", spent, **figures)


def profiled(call: Call, bench: TritonBench) -> Surrogate | None:
    """Return predictions from execution times, which are measured once; None if the time was up."""
    space, slo = call.subject.space, call.subject.slo
    surrogate = Surrogate(space=space, slo=slo, seed=SEED)
    for line in call.lines("profile"):
        for kind, curves in curves_from_text(line["curves"]).items():
            surrogate.curves[kind].update(curves)
    for knobs in kinds_to_profile(space):
        if surrogate.profiled(knobs):
            continue
        if not call.time_for(PROFILE_S):
            return None
        config, kind = space.config(knobs), surrogate.kind_of(knobs)
        with spending(bench) as spent:
            bench.load(config)
            try:
                curve = measure_curve(
                    bench.saturate,
                    instances=config.instance_count,
                    max_batch_size=max(1, config.max_batch_size),
                    limit_s=slo.first.limit_ms / 1e3,
                    seed=SEED,
                    executed_sizes=surrogate.executed_sizes(config),
                )
            except NotMeasured as reason:
                print(f"{knobs_text(config)} was not profiled: {reason}", file=sys.stderr)
                continue
        surrogate.curves[kind][config.instance_count] = curve
        call.add("profile", spent, knobs=knobs, curves=profile_text({kind: {config.instance_count: curve}}))
    return surrogate


def put_to_the_test(
    call: Call, bench: TritonBench, knobs: Knobs, best_per_s: float | None, predicted_per_s: float
) -> dict[str, object]:
    """Test one configuration; returns the figures of its line."""
    runs: list[Run] = []
    figures: dict[str, object] = {"best_per_s": best_per_s, "runs": runs}
    read = noting(reader(bench.measure, call.subject.slo, seconds=call.settings.edge_s, seed=SEED), runs)
    try:
        bench.load(call.subject.space.config(knobs))
        verdict, tested_per_s, capacity = tried(
            read,
            best_per_s=best_per_s,
            guess_per_s=max(predicted_per_s, call.floor_per_s),
            floor_per_s=call.floor_per_s,
        )
    except Untrusted as problem:
        return figures | {"verdict": "untrusted", "reason": str(problem)}
    except BenchFailed as failure:
        return figures | {"verdict": "failed", "reason": failure.reason}
    return figures | {
        "verdict": verdict,
        "tested_per_s": tested_per_s,
        **({} if capacity is None else capacity.figures()),
    }
