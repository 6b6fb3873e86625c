"""Run Optuna's TPE with a bisection per trial on simulated servers, to compare with the search.

    python benchmarks/simulated_tpe.py RESULTS.jsonl [--kind cnn] [--servers 10] [--jobs 1]

Server N is the one of benchmarks/simulated_search.py, and N is the sampler's seed. A trial is a bisection of seven
probes of 10 s over three decades of the rate, in virtual time; a probe ends early if the server is overloaded.
Nothing is certified. Each server is a line of RESULTS, and existing lines are not measured again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from lib.audits import audited_log
from lib.exhaustive.phases import TPE_PROBE_S, TPE_PROBES, TPE_SEED, TPE_TRIALS
from lib.raw_lines import Line, add_line, lines_of

from loadgen.spec.limits import LatencyLimit
from search.records.slo import Slo

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

WARMUP_S = 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--kind", default="cnn")
    parser.add_argument("--servers", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    known = {(line["kind"], line["number"]) for line in lines_of(arguments.results)}
    wanted = [(arguments.kind, number) for number in range(arguments.servers)]
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for line in pool.map(measured, [one for one in wanted if one not in known]):
            print(json.dumps(add_line(arguments.results, line)))


def measured(asked: tuple[str, int]) -> Line:
    """Return the line of one server: the true capacity of its best and of TPE's choice, and the load."""
    import optuna
    from drawn_servers import drawn_server
    from simulated_bench import SimulatedBench
    from true_rates import best_rate, true_rate

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    kind, number = asked
    server, cpu_s = drawn_server(kind, number), time.process_time()
    slo = Slo(limits=(LatencyLimit(limit_ms=server.limit_ms),))
    truth: dict[str, Any] = {"contention": server.contention, "noise": server.noise}
    bench = SimulatedBench(service_s=server.service_s, limit_ms=server.limit_ms, **truth)
    with tempfile.TemporaryDirectory() as folder:
        space = server.space(Path(folder))
        axes, configs = space.axes(), [space.config(knobs) for knobs in space.points()]

        def met_per_s(trial: optuna.Trial) -> float:
            for name, values in axes.items():
                trial.suggest_categorical(name, values)
            bench.load(space.config(trial.params))
            low = 250.0 / server.limit_ms
            high = 1000.0 * low
            for _ in range(TPE_PROBES):
                middle = math.sqrt(low * high)
                probe = bench.measure(middle, WARMUP_S + TPE_PROBE_S, TPE_SEED + number)
                log = probe.log.between(WARMUP_S, WARMUP_S + TPE_PROBE_S)
                met = not probe.overloaded and audited_log(log, slo)["met"]
                low, high = (middle, high) if met else (low, middle)
            return low

        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=number))
        study.optimize(met_per_s, n_trials=TPE_TRIALS)
        chosen = space.config(study.best_params)
    return {
        "kind": kind,
        "number": number,
        "best": best_rate(configs, server.service_s, limit_ms=server.limit_ms, **truth),
        "chosen": true_rate(chosen, server.service_s, limit_ms=server.limit_ms, **truth),
        "estimated": study.best_value,
        "load_s": bench.spent.load_s,
        "cpu_s": time.process_time() - cpu_s,
    }


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    main()
