"""Show what the search decides differently now: 1,000 predictions and 50 whole searches, to the last digit.

`python decision_trace.py` compares with tests/golden/decisions, prints how many decisions differ and the first
difference, and succeeds either way: it is to be looked at. `--write` keeps the decisions of now.
`python decision_trace.py configurations` prints simulated configurations and their predictions; `KIND`, a kind of
tests/support/drawn_servers.py, whole searches and their certificates. One JSON object per line.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loadgen.spec.limits import LatencyLimit

GOLDEN = Path(__file__).parents[1] / "golden" / "decisions"
CONFIGURATIONS = 1000
SEARCHES = 10
"""Each kind has so many searches; the number of a search selects one of the situations below."""

REQUESTS = 4000

SAME_ON_EVERY_MACHINE = {
    "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR",
    "OPENBLAS_CORETYPE": "Haswell",
    "OPENBLAS_NUM_THREADS": "1",
    "NUMBA_CPU_NAME": "x86-64-v3",
}
"""numpy computes exp and log in several ways, which differ in the last digit; every machine supports AVX2's."""


def trace(part: str) -> str:
    """Return the lines of one part, from its own process, whose numbers do not depend on the processor."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(Path(__file__)), part],
        env={**os.environ, **SAME_ON_EVERY_MACHINE},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def configurations() -> Iterator[dict[str, Any]]:
    """Yield servers of all sizes and rules, under one limit or two, with the predicted rate of each."""
    import numpy as np
    from batchers import mean_batch_size

    from search.simulator.capacity import rate_at_limit, sharpness
    from search.simulator.server import SimulatedServer, simulate
    from search.workload import unit_arrivals

    arrivals = [unit_arrivals(seed, requests=REQUESTS) for seed in range(4)]
    for number in range(CONFIGURATIONS):
        rng = np.random.default_rng(number)
        sizes, busy = int(rng.integers(1, 33)), int(rng.integers(1, 9))
        fixed_s, each_s = rng.uniform(5e-4, 8e-3), rng.uniform(5e-5, 4e-3)
        column = fixed_s + each_s * np.arange(sizes + 1)
        server = SimulatedServer(
            service_s=np.outer(column, np.maximum(1, np.arange(busy + 1)) ** rng.uniform(0, 1.2)),
            overhead_s=float(rng.uniform(0, 1e-3)),
            noise=tuple(rng.uniform(0.9, 1.2, int(rng.integers(1, 64))).tolist()),
            max_queue_delay_s=float(rng.choice([0.0, 0.0, 5e-4, 2e-3, 8e-3])),
            preferred_batch_sizes=(int(rng.integers(1, sizes + 1)),) if rng.random() < 0.25 else (),
        )
        limit_s = float(column[-1] * rng.uniform(0.8, 8.0))
        first = LatencyLimit(limit_ms=1e3 * limit_s)
        also = (
            (LatencyLimit(limit_ms=1e3 * limit_s * rng.uniform(0.2, 0.9), quantile=0.5),)
            if rng.random() < 0.2
            else ()
        )
        unit = arrivals[number % len(arrivals)]
        rate = rate_at_limit(server, (first, *also), unit)
        line: dict[str, Any] = {"number": number, "rate_per_s": rate}
        if rate > 0:
            near = sharpness(server, first, rate, unit)
            line["elasticity"], line["vif"] = near.elasticity, near.vif
            line["p99_s"] = float(np.quantile(simulate(server, unit / rate), 0.99))
            line["mean_batch_size"] = mean_batch_size(server, unit / rate)
        yield line


def searches(kind: str) -> Iterator[dict[str, Any]]:
    """Yield whole searches with their certificates, in quiet and in disturbed situations."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    for number in range(SEARCHES):
        with tempfile.TemporaryDirectory() as folder:
            yield {"kind": kind, "number": number, **_search(kind, number, Path(folder))}


def _search(kind: str, number: int, folder: Path) -> dict[str, Any]:
    from drawn_servers import drawn_server
    from simulated_bench import BudgetOfLoad, SimulatedBench

    from search.certification.certify import certify_best
    from search.records.slo import Slo
    from search.study.run import SamplerSearch, run_search
    from search.study.store import open_store
    from search.study.trial_runner import TrialRunner
    from search.trials import events
    from search.trials.bench import ObservedBench
    from search.trials.objective import COST, Energy

    server = drawn_server(kind, number)
    space = server.space(folder)
    bench = SimulatedBench(
        service_s=server.service_s,
        contention=server.contention,
        noise=server.noise,
        limit_ms=server.limit_ms,
        **_situation(number),
    )
    also = (LatencyLimit(limit_ms=0.6 * server.limit_ms, quantile=0.5),) if number == 4 else ()
    slo = Slo(limits=(LatencyLimit(limit_ms=server.limit_ms), *also))
    objective = Energy() if number == 2 else COST
    store = open_store(space, folder, storage="sqlite://", seed=number, objective=objective)
    confirmations: list[dict[str, Any]] = []

    def on_event(event: events.Event) -> None:
        if isinstance(event, events.ConfirmationEnded):
            confirmations.append(
                {
                    "trial": event.trial.number,
                    "rate_per_s": event.rate_per_s,
                    "violated": event.violated,
                    "certificate": _certificate(event.certificate, slo),
                }
            )

    common: dict[str, Any] = {
        "slo": slo,
        "budget": BudgetOfLoad(total_s=150.0 if number == 3 else 600.0, spent=bench.spent),
        "seed": number,
        "on_event": on_event,
        "workload": bench.workload,
    }
    runner = TrialRunner(store=store, bench=ObservedBench(bench), **common)
    found = None
    if number == 1:
        SamplerSearch(runner).run()
    else:
        found = run_search(runner)
    certified = certify_best(runner, found)
    return {
        "trials": [_trial(trial) for trial in store.trials],
        "confirmations": confirmations,
        "winner": None if certified is None else certified.winner.number,
        "baseline": None if certified is None or certified.baseline is None else certified.baseline.number,
        "load_s": bench.spent.load_s,
        "loading_s": bench.spent.loading_s,
    }


def _situation(number: int) -> dict[str, Any]:
    """Return the situation of the bench in the search of this number; 0 to 4 are quiet.

    In addition, 1 predicts nothing, 2 asks for the least energy, 3 has little time, and 4 has two limits.
    """
    from loadgen.spec.plan import Arrivals
    from search.workload import Workload

    situations: dict[int, dict[str, Any]] = {
        2: {"power_w": lambda config: 100.0 + 20.0 * config.instance_count},
        5: {"workload": Workload(rows_per_request=2)},
        6: {"workload": Workload(arrivals=Arrivals(kind="gamma", cv=2.0))},
        7: {"slowness": lambda load_s: 1.4 if load_s > 25 else 1.0},
        8: {"slowness": lambda load_s: 1.0 + 0.3 * (int(load_s / 7) % 3), "taken_cores": _neighbour},
        9: {
            "faults": lambda config: "out of memory" if config.instance_count == 2 else None,
            "late": lambda config: config.max_batch_size == 4,
        },
    }
    return situations.get(number, {})


def _neighbour(load_s: float) -> float:
    return 0.5 if 10 < load_s < 40 else 0.0


def _trial(trial: Any) -> dict[str, Any]:
    from search.space import knobs_of

    return {
        "knobs": knobs_of(trial.served),
        "state": trial.state,
        "capacity_per_s": [trial.rate_low_per_s, trial.rate_at_limit_per_s, trial.rate_high_per_s],
        "lone_ms": trial.lone_latency_ms,
        "predicted_per_s": None
        if trial.why is None or trial.why.prediction is None
        else trial.why.prediction.rate_per_s,
        "slowdown": None if trial.replay is None else trial.replay.slowdown,
        "runs": [
            [run.rate_per_s, run.seed, run.requests, run.violations, run.seconds, run.latency_ms, run.met]
            for run in trial.load_runs
        ],
        "load_s": trial.load_s,
    }


def _certificate(certificate: Any, slo: Any) -> list[Any] | None:
    if certificate is None:
        return None
    first, *further = certificate.latencies
    latencies = [first.latency_low_ms, first.latency_ms, first.latency_high_ms]
    others = [
        [
            limit.quantile,
            limit.limit_ms,
            seen.latency_low_ms,
            seen.latency_ms,
            seen.latency_high_ms,
            seen.violations,
        ]
        for limit, seen in zip(slo.limits[1:], further, strict=True)
    ]
    return [
        certificate.rate_per_s,
        certificate.requests,
        first.violations,
        certificate.seconds,
        certificate.runs,
        certificate.servers,
        certificate.confidence,
        *latencies,
        others,
    ]


def compare(*, write: bool) -> None:
    """Print for each part how many decisions differ from the golden files, and the first difference."""
    from drawn_servers import KINDS

    for part in ("configurations", *KINDS):
        text, golden = trace(part), GOLDEN / f"{part}.jsonl"
        now, before = ([json.loads(line) for line in one.splitlines()] for one in (text, golden.read_text()))
        differ = [pair for pair in zip(now, before, strict=False) if pair[0] != pair[1]]
        first = f": {first_difference(*differ[0])}" if differ else ""
        print(f"{part}: {len(differ)} of {len(now)} decisions differ{first}", flush=True)
        if write:
            golden.write_text(text)


def first_difference(now: Any, before: Any, where: str = "") -> str:
    """Return where two documents first differ, and how; empty if they are equal."""
    if type(now) is type(before) and isinstance(now, dict) and now.keys() == before.keys():
        pairs = [(now[key], before[key], f"{where}.{key}") for key in now]
    elif isinstance(now, list) and isinstance(before, list) and len(now) == len(before):
        pairs = [(a, b, f"{where}[{at}]") for at, (a, b) in enumerate(zip(now, before, strict=True))]
    else:
        return "" if now == before else f"{where}: {now} instead of {before}"
    return next((text for text in (first_difference(*pair) for pair in pairs) if text), "")


def main() -> None:
    part = sys.argv[1] if len(sys.argv) > 1 else None
    if part in {None, "--write"}:
        compare(write=part is not None)
        return
    assert part is not None
    for line in configurations() if part == "configurations" else searches(part):
        print(json.dumps(line, separators=(",", ":")), flush=True)


if __name__ == "__main__":
    main()
